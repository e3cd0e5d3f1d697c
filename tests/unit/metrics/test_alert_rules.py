"""The alert rules for Prometheus ask for what a real job exports, and fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from penstock.metrics.prometheus import JobCollector
from tests.support.tools.places import ROOT
from tests.support.tools.promtool import promtool
from tests.support.world.sums_job import SumsWorld, drain_and_commit

RULES = ROOT / "deploy" / "prometheus" / "penstock.rules.yml"
TEXT = RULES.read_text("utf-8")
ALERTS = re.findall(r"- alert: (\w+)", TEXT)
PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")
Labels = Mapping[str, str]
Series = dict[tuple[str, tuple[tuple[str, str], ...]], str]
"""(Name, labels) → the values of a series, a minute apart, as promtool takes them."""
SINCE = {
    "penstock_job_outage_since_ms",
    "penstock_job_uncommitted_since_ms",
    "penstock_job_batch_since_ms",
    "penstock_job_last_checkpoint_ms",
    "penstock_job_phase_since_ms",
}

CASES: dict[str, dict[str, str]] = {
    "PenstockDriverDown": {"up": "1x10 0x80"},
    "PenstockNotRunning": {'penstock_phase_active{phase="restoring"}': "1x90"},
    "PenstockSystemAway": {"penstock_job_outage_since_ms": "0x49 3000000x40"},
    "PenstockBatchHangs": {"penstock_job_stalled_ms": "0x30 0+60000x60"},
    "PenstockNoBatchEnds": {"penstock_stream_messages_behind_high_watermark": "23499x90"},
    "PenstockCannotCommit": {
        "penstock_job_uncommitted_since_ms": "0x30 1800000x60",
        "penstock_job_batches_total": "0+60x90",
    },
    "PenstockFailsAgainAndAgain": {"penstock_job_failures_since_checkpoint": "0x30 3x60"},
    "PenstockGoesBack": {"penstock_job_rewinds_total": "0+1x90"},
    "PenstockNoContainers": {"penstock_job_containers": "2x30 0x60"},
    "PenstockFallsBehind": {
        "penstock_stream_messages_behind_high_watermark": "0+1000x90",
        "penstock_job_batches_total": "0+60x90",
    },
    "PenstockDeadLetters": {"penstock_stage_dead_letters_total": "0x40 0+1x50"},
}
"""The difference from an idle job for an alert to fire after an hour."""
QUIET: dict[str, dict[str, str]] = {
    "an idle job": {},
    "a busy job that keeps up": {
        "penstock_job_batches_total": "0+60x90",
        "penstock_stream_messages_behind_high_watermark": "_x2 120 0 90 3 500 20x90",
        "penstock_job_uncommitted_since_ms": "0+60000x90",
    },
    "a job that catches up": {
        "penstock_job_batches_total": "0+60x90",
        "penstock_stream_messages_behind_high_watermark": "1000000-10000x90",
    },
    "a rewind": {"penstock_job_rewinds_total": "0x30 1x60", "penstock_job_failures_since_checkpoint": "0x30 1 0x60"},
    "a start": {
        'penstock_phase_active{phase="restoring"}': "1x5 0x90",
        'penstock_phase_active{phase="running"}': "0x5 1x90",
    },
}


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, tuple[tuple[str, str], ...]], float]]:
    """The samples of a real job that has read everything and committed it."""
    with closing(SumsWorld(tmp_path_factory.mktemp("job"))) as world:
        driver = world.started()
        world.put(*range(1, 10))
        drain_and_commit(driver)
        families = JobCollector("sums-1", driver.board.metrics.snapshot).collect()
        yield {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }


def test_rules_ask_for_what_a_job_exports(idle: Series) -> None:
    labels: dict[str, set[str]] = {}
    for name, own in idle:
        labels.setdefault(name, set()).update(label for label, _ in own)
    assert len(ALERTS) == len(set(ALERTS)) == len(CASES)
    asked = set(re.findall(r"penstock_\w+", re.sub(r"#.*|description:.*|summary:.*", "", TEXT)))
    assert asked <= labels.keys()
    for name, inner in re.findall(r"(penstock_\w+)\{([^}]*)\}", TEXT):
        assert set(re.findall(r"(\w+)=", inner)) <= labels[name]
    phases = {
        value for name, own in idle for label, value in own if name == "penstock_phase_active" if label == "phase"
    }
    for choice in re.findall(r'phase=~?"([^"]*)"', TEXT):
        assert set(choice.split("|")) <= phases


def test_the_page_lists_the_alerts() -> None:
    assert re.findall(r"^\| `(Penstock\w+)` \|", PAGE, re.MULTILINE) == ALERTS


def series(idle: Series, changes: Mapping[str, str]) -> list[dict[str, str]]:
    """An idle job's samples for 90 minutes, with some that differ. Times in the past are as long before time 0."""
    found = []
    used = set()
    for (name, own), value in idle.items():
        steady = f"{0 if name in SINCE else value}x90"
        matching = [key for key in changes if _is_of(key, name, dict(own))]
        used |= set(matching)
        labels = ",".join(f'{label}="{each}"' for label, each in own)
        found.append({"series": f"{name}{{{labels}}}", "values": changes[matching[0]] if matching else steady})
    assert used == set(changes) - {"up"}, "a change that changes nothing"
    return [*found, {"series": 'up{job="penstock",instance="here"}', "values": changes.get("up", "1x90")}]


def _is_of(key: str, name: str, labels: Labels) -> bool:
    head, _, inner = key.partition("{")
    return head == name and all(labels.get(label) == value for label, value in re.findall(r'(\w+)="([^"]*)"', inner))


@pytest.mark.slow
def test_prometheus_fires_the_alerts_of_a_job_in_trouble_and_none_of_a_good_one(idle: Series, tmp_path: Path) -> None:
    """On Prometheus's own evaluation of rules: each alert in its trouble, whatever else fires, and none otherwise."""
    program = promtool()
    firing = 'ALERTS{alertstate="firing"}'
    tests = [
        {
            "name": alert,
            "interval": "1m",
            "input_series": series(idle, changes),
            "promql_expr_test": [
                {
                    "expr": f'count by (alertname) (ALERTS{{alertstate="firing",alertname="{alert}"}})',
                    "eval_time": "60m",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
                }
            ],
        }
        for alert, changes in CASES.items()
    ] + [
        {
            "name": name,
            "interval": "1m",
            "input_series": series(idle, changes),
            "promql_expr_test": [{"expr": firing, "eval_time": f"{at}m", "exp_samples": []} for at in range(0, 90, 3)],
        }
        for name, changes in QUIET.items()
    ]
    document = tmp_path / "rules.test.json"
    document.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}), "utf-8")
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(document)]):
        done = subprocess.run([program, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
