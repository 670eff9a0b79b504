"""A published model that cannot be read, whatever is wrong with it, is set aside, and the last good one serves."""

import io
from typing import Any

import numpy as np
import pytest

from learning.estimators.serving_time import ServingTimes
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.store import Unreadable, digest, dump, load
from models import model_versions
from tasks.planning.serving_estimates import ServingEstimates
from tasks.prediction.predictor_in_service import PredictorInService
from tests.integration.database_stage import Stage


def good() -> bytes:
    return dump(ServingTimes())


def archive(**arrays: Any) -> bytes:
    stored = io.BytesIO()
    np.savez_compressed(stored, allow_pickle=True, **arrays)
    return stored.getvalue()


SPOILED = {
    "empty": b"",
    "no archive": b"PK\x03\x04 and then nothing",
    "half of one": good()[: len(good()) // 2],
    "arrays missing": archive(kind=np.asarray("serving_times")),
    "no kind": archive(other=np.zeros(3)),
    "pickled": archive(kind=np.asarray([object()], dtype=object)),
}


@pytest.mark.parametrize("stored", SPOILED.values(), ids=SPOILED)
def test_whatever_is_wrong_with_the_bytes_is_one_error(stored: bytes):
    with pytest.raises(Unreadable):
        load(stored, digest(stored))


def publish(stage: Stage, kind: str, stored: bytes) -> str:
    with stage.database.begin() as connection:
        return model_versions.publish(connection, kind, stored, digest(stored), {}, {})


def test_the_planner_goes_back_to_the_last_estimator_that_can_be_read(stage: Stage):
    last_good = publish(stage, "serving_time", good())
    bad = [publish(stage, "serving_time", stored) for stored in SPOILED.values()]
    with stage.database.begin() as connection:
        ServingEstimates().adopt(connection, bad[-1])
    assert stage.sql("select version from model_versions where active") == [(last_good,)]
    assert stage.sql("select count(*) from model_versions where unreadable is not null") == [(len(bad),)]


def test_the_predictor_goes_back_and_predicts(stage: Stage):
    predictor = make_predictor("uilo", make_encoder("hashing"))
    last_good = publish(stage, "length", dump(predictor))
    publish(stage, "length", SPOILED["half of one"])
    stage.request("r1", predicted_tokens=None, predicted_upper_tokens=None)
    assert PredictorInService(stage.database).run(on_predicted=lambda _: None) == 1
    assert stage.requests("predictor_version") == {"r1": last_good}


def test_if_none_can_be_read_it_predicts_as_before_the_first(stage: Stage):
    publish(stage, "length", b"")
    stage.request("r1", predicted_tokens=None, predicted_upper_tokens=None)
    assert PredictorInService(stage.database).run(on_predicted=lambda _: None) == 1
    assert stage.sql("select 1 from model_versions where active") == []
