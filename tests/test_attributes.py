import json

import numpy as np
import pytest

from features.errors import ConfigError
from ranking.retrieval.attributes import ItemAttributes, item_attributes, learn_attributes

FIELDS = [json.dumps({"title": "t", "year": 1990 + row, "rare": 1}).encode() for row in range(20)]
FIELDS[1:] = [text.replace(b', "rare": 1', b"") for text in FIELDS[1:]]
CATEGORIES = [("b", "a"), ("a",), *[()] * 18]


def test_vocabulary_survives_json():
    vocabulary = learn_attributes(FIELDS, CATEGORIES)
    assert vocabulary.categories == ("a", "b")
    assert [attribute.name for attribute in vocabulary.numeric] == ["year"]
    again = ItemAttributes.from_dict(json.loads(json.dumps(vocabulary.to_dict())))
    assert again == vocabulary


def test_columns():
    vocabulary = learn_attributes(FIELDS, CATEGORIES)
    columns = item_attributes(FIELDS, CATEGORIES, vocabulary)
    assert columns.shape == (20, vocabulary.width)
    np.testing.assert_allclose(columns[0, :3], [2**-0.5, 2**-0.5, 0])
    assert columns[1, :3].tolist() == [1, 0, 0]
    assert columns[2, :3].tolist() == [0, 0, 1]
    assert abs(columns[:, 3].mean()) < 1e-6
    assert (columns[:, 4] == 0).all()
    assert (columns[:, 5:].sum(axis=1) == 1).all()
    assert columns[0, 5] == columns[19, -1] == 1


@pytest.mark.parametrize(
    "text",
    [b"{}", b'{"year": null}', b'{"year": "x"}', b'{"year": true}', b"[1]", b'{"year":1e400}'],
)
def test_missing_and_odd_values_have_the_flag_alone(text):
    vocabulary = learn_attributes(FIELDS, CATEGORIES)
    columns = item_attributes([text], [("unknown",)], vocabulary)
    assert np.isfinite(columns).all()
    assert columns[0].nonzero()[0].tolist() == [2, 4]


def test_extreme_values_are_clipped():
    vocabulary = learn_attributes(FIELDS, CATEGORIES)
    columns = item_attributes([b'{"year": 1e300}', b'{"year": -1e300}'], [(), ()], vocabulary)
    assert columns[:, 3].tolist() == [4, -4]


def test_catalogue_without_attributes():
    vocabulary = learn_attributes([b"{}"], [()])
    assert item_attributes([b"{}", b"{}"], [(), ()], vocabulary).tolist() == [[1.0], [1.0]]
    assert item_attributes([], [], vocabulary).shape == (0, 1)


def test_stored_vocabulary_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match="train again"):
        ItemAttributes.from_dict({"categories": ["a"], "numeric": [{"name": "year"}]})
