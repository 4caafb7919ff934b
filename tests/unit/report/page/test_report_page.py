"""Page of a recorded run: rows, rollouts, reasons, and the written file."""

import asyncio
import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from braidrl.cli import main
from braidrl.report.page.changes import START, bounded, changes, thinned
from braidrl.report.page.facts import algorithms, facts, find_tokenizer, resolved
from braidrl.report.page.index import EPISODE_COLUMNS, ID, SAMPLE_COLUMNS, Index
from braidrl.report.page.rollout import rollout
from braidrl.report.page.write import order, write_report
from braidrl.utils.run_folder import RunFolder
from tests.support.report_runs import LIKELY, record_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> RunFolder:
    """Recorded run shared by the tests of this module; read only."""
    return asyncio.run(record_run(tmp_path_factory.mktemp("recorded") / "run", tiny_model_dir))


@pytest.fixture(scope="module")
def index(run: RunFolder) -> Index:
    found = Index(run)
    while found.read(5):
        pass
    return found


def rows(index: Index, **wanted: Any) -> list[dict[str, Any]]:
    """Return the episode rows with the given values."""
    named = [dict(zip(EPISODE_COLUMNS, row, strict=True)) for row in index.episodes]
    return [row for row in named if wanted.items() <= row.items()]


def records(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Return every recorded episode by the id that the page uses."""
    paths = (run.root / "episodes").glob("[te][rv]a*/*.jsonl")
    found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return {record["id"][:ID]: record for record in found}


def test_every_episode_has_a_row_with_its_numbers(run: RunFolder, index: Index) -> None:
    assert len(index.episodes) == 18 == len(records(run))
    for row in rows(index):
        record = records(run)[row["id"]]
        (trace,) = record["traces"]
        assert row["reward"] == record["braid"]["rewards"][trace["id"]]
        credit = [value for node in trace["nodes"] for value in node.get("advantages") or ()]
        assert row["advantage"] == (pytest.approx(sum(credit) / len(credit)) if credit else None)
        assert (row["env"], row["key"]) == (record["braid"]["env"], record["braid"]["key"])
        assert row["turns"] == sum(node["sampled"] for node in trace["nodes"])
    (branched,) = rows(index, branches=3)
    assert (branched["oldest"], branched["newest"], branched["turns"]) == (0, 1, 4)
    assert {row["state"] for row in rows(index, key="group-000002/1")} == {"error"}
    assert {row["preview"] for row in rows(index, kind="eval")} == {"held out"}


def test_the_index_goes_on_where_it_stopped(run: RunFolder, tmp_path: Path) -> None:
    copied = RunFolder(tmp_path)
    target = copied.train_episodes(1)
    target.parent.mkdir(parents=True)
    lines = run.train_episodes(1).read_text().splitlines(keepends=True)
    found = Index(copied)
    assert not found.read()
    target.write_text(lines[0] + lines[1][:40])
    assert found.read() and not found.read() and len(found.episodes) == 1
    target.write_text("".join(lines))
    assert found.read() and len(found.episodes) == len(lines)
    assert not found.rewritten()
    target.write_text(lines[0])
    assert found.rewritten()


def test_changes_are_what_a_page_does_not_have(index: Index) -> None:
    whole = changes(index)
    assert whole["cursor"] == (2, 2, 2, 18, len(index.samples), len(index.fates))
    assert changes(index, whole["cursor"])["episodes"] == {name: [] for name in EPISODE_COLUMNS}
    some = changes(index, (1, 2, 0, 16, 0, 0))
    assert some["metrics"]["trainer"]["step"] == [2] and some["metrics"]["orchestrator"] == {}
    assert [row[0] for row in index.episodes[16:]] == some["episodes"]["id"]
    assert whole["fates"]["group-000000/1"] == "trained" and whole["fates"]["group-000001/0"] == "no_signal"
    assert START == (0, 0, 0, 0, 0, 0)


def test_a_page_that_is_written_once_is_bounded_and_says_so(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bounded(index)["left_out"] == {}
    monkeypatch.setattr("braidrl.report.page.changes.MOST_ROWS", 5)
    found = bounded(index)
    assert found["left_out"]["episodes"] == {"shown": 5, "of": 18}
    assert found["episodes"]["id"][0] == index.episodes[0][0]
    assert found["episodes"]["id"][-1] == index.episodes[-1][0]
    assert thinned(range(1001), 11) == list(range(0, 1001, 100))


def test_a_rollout_holds_the_numbers_of_its_record(run: RunFolder, index: Index) -> None:
    for episode, record in records(run).items():
        shown = rollout(index, episode, 64)
        for trace, recorded in zip(shown["traces"], record["traces"], strict=True):
            for node, original in zip(trace["nodes"], recorded["nodes"], strict=True):
                for name in ("token_ids", "logprobs", "advantages", "loss_weights"):
                    assert node.get(name) == (original.get(name) or None)
                assert node["mask"] == "".join("01"[each] for each in original["mask"])


def reason_of(index: Index, key: str) -> list[str]:
    """Return the letters of each branch of an episode's first trace."""
    (row,) = rows(index, key=key)
    return [branch["why"] for branch in rollout(index, row["id"], 64)["traces"][0]["branches"]]


def test_what_trained_is_told_from_what_did_not(index: Index) -> None:
    prompt = (
        "PPPPPP" + "CCCCC" + "P" + "PPPPPPPPPPP"
    )  # <|im_start|>user, what?, <|im_end|>, <|im_start|>assistant
    assert reason_of(index, "group-000000/0") == [f"{prompt}TTTT"]
    assert reason_of(index, "group-000001/0") == [f"{prompt}000"]
    assert reason_of(index, "group-000002/0") == [f"{prompt}GGGGG"]
    assert reason_of(index, "eval/held/0/0") == [f"{prompt}EEEEEEEEE"]
    assert reason_of(index, "told-000003/1") == [f"{prompt}RRRRR" + "PPPPPP" + "TTTTTTTT" + "P"]


def test_a_shared_message_trains_on_its_first_branch(index: Index) -> None:
    prompt, more = "PPPPPPCCCCCPPPPPPPPPPPP", "PPPPPPCCCCCPPPPPPPPPPPP"
    third, fourth, first = reason_of(index, "told-000007/0")
    assert third == prompt + "T" * len("second try>") + more + "T" * len("third>")
    assert fourth == prompt + "S" * len("second try>") + more + "L" * len(
        "fourth one>"
    )  # 67 tokens, seq_len is 64
    assert first.startswith(prompt + "T" * len("first try>"))


def test_facts_of_a_run(run: RunFolder, tmp_path: Path) -> None:
    known = facts(run)
    assert known["algorithms"] == {"group": "grpo", "told": "echo"}
    assert known["loss"] == {"type": "ipo", "eps": 0.1} and known["max_steps"] == 2
    assert list(known["config"]) == ["rl.toml"]
    assert find_tokenizer(run) is not None
    empty = RunFolder(tmp_path)
    assert resolved(empty) == {} and algorithms({}) == {} and find_tokenizer(empty) is None
    with pytest.raises(FileNotFoundError):
        find_tokenizer(run, tmp_path)
    for path in (empty.record, empty.packages):
        path.parent.mkdir(exist_ok=True)
        path.write_text("what it was made of")
    assert list(facts(empty)["config"]) == [empty.record.name, empty.packages.name]


def blob(text: str, name: str) -> Any:
    found = re.search(f'<script type="text/plain" id="{name}">([^<]*)</script>', text)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_a_report_is_one_file_that_asks_nobody(run: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "page.html"
    found = write_report(run, target, 4.0)
    text = target.read_text()
    assert found == {"episodes": 18, "shown": 18, "open": 18, "bytes": len(text)}
    assert "connect-src 'none'" in text and "sourceMappingURL" not in text
    assert not re.search(
        r"""(?:src|href)=["'](?!data:)[^"'#]""", re.sub(r"<script.*?</script>", "", text, flags=re.S)
    )
    assert len(blob(text, "table")["episodes"]["id"]) == 18
    assert len(blob(text, "rollouts-0")["rollouts"]) == 16


def test_no_room_leaves_rollouts_out_but_not_the_table(run: RunFolder, tmp_path: Path) -> None:
    found = write_report(run, tmp_path / "page.html", 0.0)
    assert (found["shown"], found["open"]) == (18, 0)


def test_the_last_trained_step_has_its_place_first(index: Index) -> None:
    shown = {row[0] for row in index.episodes}
    first = order(index, shown)
    step, episode = SAMPLE_COLUMNS.index("step"), SAMPLE_COLUMNS.index("episode")
    last = {row[episode] for row in index.samples if row[step] == 2}
    assert set(first[: len(last)]) == last and set(first) == shown


def test_the_command_writes_into_the_run_folder_or_says_what_is_wrong(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "r.html"
    assert main(["report", str(run.root), "--output", str(target)]) == 0
    assert "18 of 18 rollouts listed, 18 with per-token values" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["report", str(run.root), "--output", str(target), "--tokenizer", str(tmp_path)]) == 2
    assert "tokenizer.json" in capsys.readouterr().err


def test_the_likely_log_prob_is_near_what_the_policy_gives(index: Index) -> None:
    """Otherwise every token of the recorded run would be outside the trust region."""
    (row,) = rows(index, key="group-000000/0")
    sample = rollout(index, row["id"])["traces"][0]["branches"][0]["sample"]
    assert all(abs(value - LIKELY) < 1 for value in sample["logprobs"])
