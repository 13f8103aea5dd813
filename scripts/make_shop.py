"""Write the events and items of an invented shop, for docs/your-data.md.

python scripts/make_shop.py FOLDER
"""

import csv
import json
import random
import sys
from pathlib import Path

AISLES = {"tents": 180, "boots": 90, "stoves": 60, "maps": 12, "lamps": 35, "packs": 110}
ITEMS, USERS, START = 600, 800, 1_760_000_000


def main(folder: Path) -> None:
    """Write ``items.csv`` and ``events.jsonl``."""
    rng = random.Random(1)  # noqa: S311 - invented data, no secret
    folder.mkdir(parents=True, exist_ok=True)
    of_aisle: dict[str, list[str]] = {name: [] for name in AISLES}
    prices = {}
    with (folder / "items.csv").open("w", newline="") as stream:
        items = csv.writer(stream)
        items.writerow(["item_id", "title", "categories", "price", "created_at"])
        for number in range(ITEMS):
            aisle = rng.choice(list(AISLES))
            sku = f"{aisle[:2].upper()}-{number:04d}"
            prices[sku] = round(AISLES[aisle] * rng.lognormvariate(0, 0.4), 2)
            of_aisle[aisle].append(sku)
            created = START - rng.randrange(300 * 86_400)
            kind = rng.choice(["light", "sturdy", "cheap"])
            items.writerow(
                [sku, f"{kind} {aisle} {number}", f"{aisle}|{kind}", prices[sku], created]
            )
    with (folder / "events.jsonl").open("w") as stream:
        for user in range(USERS):
            moment = START + rng.randrange(60 * 86_400)
            for _ in range(rng.randrange(1, 5)):  # visits, each to one aisle and what stands near
                shelf = of_aisle[rng.choice(list(AISLES))]
                at = rng.randrange(len(shelf))
                for _ in range(rng.randrange(2, 9)):
                    at = (at + rng.choice([1, 1, 2, 3])) % len(shelf)
                    moment += rng.randrange(10, 120)
                    event = {"customer": f"c{user}", "sku": shelf[at], "ts": moment, "kind": "view"}
                    stream.write(json.dumps(event) + "\n")
                    if rng.random() < 0.12:
                        event |= {"kind": "purchase", "ts": moment + 5, "paid": prices[shelf[at]]}
                        stream.write(json.dumps(event) + "\n")
                moment += rng.randrange(86_400, 12 * 86_400)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
