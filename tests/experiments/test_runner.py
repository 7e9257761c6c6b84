"""The runner's bookkeeping, on an executor that needs no processes."""

import io
import json
import time
import warnings

import pytest

from uvax.experiments.estimates import Estimates, in_words
from uvax.experiments.executors import Outcome, Progress
from uvax.experiments.jobs import trial_job
from uvax.experiments.presets import preset_hyperparameters
from uvax.experiments.rows import RowStore, Trial
from uvax.experiments.runner import missing, reuse, run_jobs
from uvax.experiments.view import Lines, headline, picture


class Pretend:
    """Ends every job at once, as `outcomes[id]` says: one entry for each attempt, "done" when there are none left."""

    description = "nothing"

    def __init__(self, store, outcomes=None, slots=2):
        self.store, self.outcomes = store, outcomes or {}
        self.started, self.stopped = [], False
        self._slots, self.capacity, self._running = slots, slots, []

    @property
    def slots(self):
        return self._slots - len(self._running)

    def start(self, job):
        self.started.append(job.id)
        self._running.append(job)

    def poll(self, seconds):
        job = self._running.pop(0)
        what = (self.outcomes.get(job.id) or ["done"]).pop(0)
        if isinstance(what, BaseException):
            raise what
        if what == "done":
            payload = job.payload
            trial = Trial(payload["experiment"], payload["config"], payload["seed"])
            self.store.append(trial.row({"status": "finished"}))
        return [Outcome(job, what, "" if what == "done" else "it fell over")]

    def progress(self):
        return {job.id: Progress(0.5, "half way") for job in self._running}

    def stop(self):
        self.stopped = True


@pytest.fixture
def trials():
    return [Trial("counting", {"kind": "x", "steps": 10, "n": n}, seed) for n in range(2) for seed in range(2)]


def jobs_of(trials, tmp_path):
    return [trial_job(t, title=f"trial {t.id}", work=tmp_path / "work", data=None, command="uvax test") for t in trials]


def run(trials, executor, tmp_path, **options):
    snapshots = []
    summary = run_jobs(
        jobs_of(trials, tmp_path),
        executor,
        results=tmp_path,
        estimates=Estimates(),
        show=snapshots.append,
        poll_seconds=0.0,
        **options,
    )
    return summary, snapshots


def test_every_missing_trial_gets_a_row_and_only_those(tmp_path, trials):
    store = RowStore(tmp_path)
    store.append(trials[0].row({"status": "finished"}))
    left = missing([*trials, trials[1]], store.read().rows)
    assert [t.id for t in left] == [t.id for t in trials[1:]]
    summary, snapshots = run(left, Pretend(store), tmp_path)
    assert (summary.done, summary.failed) == (3, [])
    assert store.finished() == {t.id for t in trials}
    assert missing(trials, store.read().rows) == []
    assert snapshots[-1].done == 3
    assert not snapshots[-1].running


def test_a_crash_is_tried_again_and_a_refusal_is_not(tmp_path, trials):
    store = RowStore(tmp_path)
    crashing, refused = trials[0].id, trials[1].id
    executor = Pretend(store, {crashing: ["crashed", "crashed", "done"], refused: ["refused", "done"]})
    summary, _ = run(trials, executor, tmp_path, retries=2)
    assert executor.started.count(crashing) == 3
    assert executor.started.count(refused) == 1
    assert summary.done == 3
    assert summary.failed == [f"trial {refused} failed: it fell over"]


def test_what_fails_for_good_is_said_and_recorded(tmp_path, trials):
    store = RowStore(tmp_path)
    lost = trials[2].id
    summary, snapshots = run(trials, Pretend(store, {lost: ["crashed"] * 9}), tmp_path, retries=1)
    assert summary.failed == [f"trial {lost} failed after 2 attempts: it fell over"]
    assert snapshots[-1].failed == summary.failed
    record = json.loads((tmp_path / "failed" / "counting.jsonl").read_text())
    assert (record["trial_id"], record["attempts"], record["error"]) == (lost, 2, "it fell over")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the record of failures is not mistaken for rows
        assert store.finished() == {t.id for t in trials} - {lost}


def test_what_an_end_makes_possible_starts_at_once(tmp_path, trials):
    """Trials that wait for a result do not wait for the others that run beside it, and hear of failures."""
    first, second, *later = trials
    heard = []

    def more(failed):
        heard.append(set(failed))
        return jobs_of([later.pop(0)], tmp_path) if later else []

    executor = Pretend(RowStore(tmp_path), {second.id: ["refused"]})
    summary, snapshots = run([first, second], executor, tmp_path, more=more)
    assert executor.started == [t.id for t in trials]
    assert heard[:2] == [set(), {second.id}]
    assert summary.done == 3
    assert (snapshots[-1].done, snapshots[-1].total) == (3, 4)


def test_an_interrupt_stops_the_workers_and_is_raised_again(tmp_path, trials):
    executor = Pretend(RowStore(tmp_path), {trials[1].id: [KeyboardInterrupt()]})
    with pytest.raises(KeyboardInterrupt):
        run(trials, executor, tmp_path)
    assert executor.stopped


def test_a_trial_of_another_experiment_is_taken_over(tmp_path):
    store = RowStore(tmp_path)
    config = {"kind": "x", "width": 128}
    store.append(Trial("table1", config, 3).row({"return": 7.5}))
    wanted = [Trial("width", config, 3), Trial("width", config, 4)]
    assert reuse(wanted, store.read().rows, store) == wanted[1:]
    copy = next(row for row in store.read().rows if row["experiment"] == "width")
    assert copy["result"] == {"return": 7.5}
    assert copy["provenance"]["reused_from"].startswith("table1/")
    # A copy is not copied again: its origin is.
    assert reuse([Trial("other", config, 3)], [copy], store) != []


def test_what_is_taken_over_says_anew_how_it_differs_from_the_preset(tmp_path):
    """A setting that the search found may have become the preset since."""
    store = RowStore(tmp_path)
    usual = preset_hyperparameters("cpu", "dqn", 10)
    config = {"kind": "x", "preset": "cpu", "method": "dqn", "size": 10, "hyperparameters": usual}
    store.append(Trial("search", config, 0).row({"changes": {"learning_rate": 3e-3}}))
    assert reuse([Trial("table1", config, 0)], store.read().rows, store) == []
    copy = next(row for row in store.read().rows if row["experiment"] == "table1")
    assert copy["result"]["changes"] == {}


def test_time_is_estimated_from_rows_of_this_machine():
    config = {"kind": "x", "steps": 100, "hyperparameters": {"class": "UVU", "width": 64}}
    row = Trial("a", config, 0).row({})
    row["provenance"]["seconds"] = 50.0
    foreign = json.loads(json.dumps(row))
    foreign["provenance"] |= {"cpu": "another processor", "seconds": 1.0}
    known = Estimates([row, foreign])
    assert known.seconds({**config, "steps": 300}) == pytest.approx(150.0)
    assert known.seconds({**config, "hyperparameters": {"class": "UVU", "width": 65}}) is None
    seconds, unknown = known.total([config] * 4 + [{"kind": "y"}], slots=2)
    assert (seconds, unknown) == (pytest.approx(100.0), 1)


def test_time_left_uses_the_progress_of_running_trials(tmp_path, trials):
    jobs = jobs_of(trials, tmp_path)
    begun = {job.id: time.monotonic() - 30.0 for job in jobs}
    progress = {job.id: Progress(0.5, "") for job in jobs[:2]}
    left = Estimates().left(jobs[2:], jobs[:2], progress, begun, slots=2)
    # Two trials with 30 s to go, and two like them of which nothing else is known.
    assert left == pytest.approx(90.0, rel=0.05)
    assert Estimates().left(jobs, [], {}, {}, slots=2) is None


class Queue(Pretend):
    """Takes all jobs at once, as a cluster does, and works on the first two."""

    slots = 1

    def __init__(self, store):
        super().__init__(store, slots=2)

    def progress(self):
        return {job.id: Progress(0.5, "half way") for job in self._running[: self.capacity]}


def test_jobs_in_the_queue_of_a_cluster_wait(tmp_path, trials):
    executor = Queue(RowStore(tmp_path))
    _, snapshots = run(trials, executor, tmp_path)
    assert executor.started == [trial.id for trial in trials]
    assert [(len(seen.running), seen.waiting) for seen in snapshots] == [(2, 2), (2, 1), (2, 0), (1, 0), (0, 0)]


def test_time_left_of_a_cluster_is_that_of_the_jobs_it_can_run_together(tmp_path, trials):
    config = {"kind": "x", "steps": 10}
    row = Trial("counting", config, 9).row({})
    row["provenance"]["seconds"] = 100.0
    snapshots = []
    run_jobs(
        jobs_of(trials, tmp_path),
        Queue(RowStore(tmp_path)),
        results=tmp_path,
        estimates=Estimates([row]),
        show=snapshots.append,
        poll_seconds=0.0,
    )
    # Two are half done after no time at all, and two of 100 s wait, for two places.
    assert snapshots[0].seconds_left == pytest.approx(100.0, abs=5.0)


@pytest.mark.parametrize(("seconds", "words"), [(0.2, "1 s"), (61, "61 s"), (600, "10 min"), (12_060, "3 h 21 min")])
def test_durations_in_words(seconds, words):
    assert in_words(seconds) == words


def test_the_view_says_what_runs_and_what_failed(tmp_path, trials, capsys):
    from rich.console import Console

    executor = Pretend(RowStore(tmp_path), {trials[0].id: ["refused"]})
    _, snapshots = run(trials, executor, tmp_path)
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(picture("counting", snapshots[1]))
    shown = console.export_text()
    assert "half way" in shown
    assert "it fell over" in shown
    assert headline("counting", snapshots[-1]).startswith("counting: 3 of 4 done, 0 running, 1 failed")
    lines = Lines("counting")
    for snapshot in snapshots:
        lines(snapshot)
    printed = capsys.readouterr().err
    assert printed.count("it fell over") == 1
    assert "3 of 4 done" in printed
