const $ = (id) => document.getElementById(id);
const form = $("form");

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function request() {
  const values = Object.fromEntries(new FormData(form));
  const body = { user_id: values.user_id, count: Number(values.count) };
  const categories = values.categories.split(",").map((c) => c.trim()).filter(Boolean);
  if (categories.length) body.categories = categories;
  if (Number(values.diversity) > 0) body.diversity = Number(values.diversity);
  if (!form.exclude_seen.checked) body.exclude_seen = false;
  return body;
}

function showCurl() {
  form.shown.value = Number(form.diversity.value).toFixed(2);
  const body = JSON.stringify(request()).replaceAll("'", "'\\''");
  $("curl").textContent =
    `curl -s ${location.origin}/v1/recommendations \\\n  -H 'content-type: application/json' \\\n  -d '${body}'`;
}

function showWaterfall(timing) {
  const rows = [];
  let before = 0;
  for (const [stage, ms] of Object.entries(timing)) {
    const row = element("div", undefined, stage === "total" ? "lap total" : "lap");
    const bar = element("span", undefined, "bar");
    const fill = element("i");
    fill.style.left = `${stage === "total" ? 0 : (100 * before) / timing.total}%`;
    fill.style.width = `${(100 * ms) / timing.total}%`;
    bar.append(fill);
    row.append(element("span", stage), bar, element("span", `${ms.toFixed(2)} ms`));
    rows.push(row);
    if (stage !== "total") before += ms;
  }
  $("waterfall").replaceChildren(...rows);
}

function showItem(item) {
  const fields = item.fields ?? {};
  const row = element("li");
  const text = element("div");
  text.append(element("strong", fields.title ?? item.id));
  const more = [`id ${item.id}`, fields.year, (fields.categories ?? []).join(", ")];
  text.append(element("small", more.filter(Boolean).join(" · ")));
  const chips = element("div", undefined, "chips");
  if (item.score !== null) chips.append(element("span", item.score.toFixed(3)));
  for (const source of item.sources) {
    chips.append(element("span", `${source.name} #${source.rank + 1}`, source.name));
  }
  row.append(text, chips);
  return row;
}

function show(answer) {
  const facts = [
    ["status", answer.status],
    ["returned", `${answer.returned} of ${answer.requested}`],
    ["retrieved", answer.counts.retrieved],
    ["filtered", answer.counts.filtered],
    ["ranked", answer.counts.ranked],
    ["release", answer.release],
    ...answer.notes.map((note) => [note.code, note.detail]),
  ];
  $("facts").replaceChildren(
    ...facts.map(([name, value]) => {
      const fact = element("span", `${name} `);
      fact.append(element("b", value));
      return fact;
    }),
  );
  showWaterfall(answer.timing_ms);
  $("items").replaceChildren(...answer.items.map(showItem));
  $("raw").textContent = JSON.stringify(answer, null, 2);
}

form.addEventListener("input", showCurl);
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const response = await fetch("/v1/recommendations", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(request()),
    });
    const answer = await response.json();
    $("answer").hidden = !response.ok;
    $("failed").hidden = response.ok;
    if (response.ok) show(answer);
    else $("failed").textContent = `${answer.status} ${answer.code}: ${answer.detail}`;
  } catch (error) {
    $("answer").hidden = true;
    $("failed").hidden = false;
    $("failed").textContent = `No answer: ${error.message}`;
  } finally {
    button.disabled = false;
  }
});

$("copy").addEventListener("click", () => navigator.clipboard.writeText($("curl").textContent));

for (const call of document.querySelectorAll("form.call")) {
  call.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { method, path } = call.dataset;
    const options = { method };
    if (call.elements.body) {
      options.body = call.elements.body.value;
      options.headers = { "content-type": "application/json" };
    }
    const output = call.querySelector("pre");
    output.hidden = false;
    try {
      const id = encodeURIComponent(call.elements.id?.value ?? "");
      const response = await fetch(path.replace("{id}", id), options);
      const text = await response.text();
      const isJson = (response.headers.get("content-type") ?? "").includes("json");
      const shown = isJson ? JSON.stringify(JSON.parse(text), null, 2) : text;
      output.textContent = `${response.status}\n${shown}`;
    } catch (error) {
      output.textContent = `No answer: ${error.message}`;
    }
  });
}

showCurl();
if (location.hash === "#try" || !location.hash) form.requestSubmit();
