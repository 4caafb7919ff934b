"""Writing of the report: the index of the run, and as many rollouts with tokens as the size limit allows."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from braidrl.report.page.changes import bounded
from braidrl.report.page.facts import facts, find_tokenizer, resolved
from braidrl.report.page.html import packed, page
from braidrl.report.page.index import EPISODE_COLUMNS, SAMPLE_COLUMNS, Index
from braidrl.report.page.pieces import Vocabulary
from braidrl.report.page.rollout import rollout, token_ids
from braidrl.utils.publish import publish_bytes
from braidrl.utils.run_folder import RunFolder

LINES = 100_000
"""Number of lines read at a time."""
CHUNK = 16
"""Number of rollouts per compressed blob."""
GOLDEN = 0.6180339887498949
"""Golden ratio minus 1: multiples of it modulo 1 are evenly spread for any number of them."""
KEY = EPISODE_COLUMNS.index("key")


def write_report(
    run: RunFolder, target: Path, max_mib: float, tokenizer: Path | None = None
) -> dict[str, int]:
    """Write the page to `target`. Rollouts with their tokens take at most `max_mib` MiB.

    Returns the number of `episodes`, those `shown` in the table, those included with their tokens (`open`), and the
    size in `bytes`. Raises the errors of `find_tokenizer`.
    """
    pieces = find_tokenizer(run, tokenizer)
    index = Index(run)
    while index.read(LINES):
        pass
    table = bounded(index)
    blobs, opened = rollout_blobs(index, table["episodes"]["id"], pieces, int(max_mib * 2**20))
    data = {"facts": facts(run) | {"tokenizer": pieces is not None}, "opened": opened}
    text = page(f"{run.root.absolute().name} · Braid", data, {"table": packed(table)} | blobs)
    publish_bytes(target, text.encode())
    shown = len(table["episodes"]["id"])
    return {"episodes": len(index.episodes), "shown": shown, "open": len(opened), "bytes": len(text)}


def rollout_blobs(
    index: Index, shown: Sequence[str], pieces: Vocabulary | None, limit: int
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return blobs of rollouts that take at most `limit` bytes in the page, and the blob name of each episode."""
    seq_len = resolved(index.run).get("seq_len")
    blobs: dict[str, bytes] = {}
    opened: dict[str, str] = {}
    left = limit * 3 // 4  # base64 writes four characters for three bytes
    for chunk in chunks(order(index, set(shown))):
        rollouts = {episode: rollout(index, episode, seq_len) for episode in chunk}
        known = {} if pieces is None else pieces.of(token_ids(rollouts.values()))
        blob = packed({"rollouts": rollouts, "pieces": known})
        if len(blob) > left:
            break
        name = f"rollouts-{len(blobs)}"
        blobs[name] = blob
        opened |= dict.fromkeys(chunk, name)
        left -= len(blob)
    return blobs, opened


def order(index: Index, shown: set[str]) -> list[str]:
    """Return episode ids in order of priority for inclusion.

    Episodes of the last trained step come first, so that its micro batches are complete. Then follow whole groups,
    spread evenly over the run however many fit.
    """
    episode, step = (SAMPLE_COLUMNS.index(name) for name in ("episode", "step"))
    last = index.samples[-1][step] if index.samples else None
    first = dict.fromkeys(row[episode] for row in index.samples if row[step] == last)
    rows = [row for row in index.episodes if row[0] in shown]
    groups = [
        [row[0] for row in group] for _, group in groupby(rows, lambda row: row[KEY].rpartition("/")[0])
    ]
    places = sorted(range(len(groups)), key=lambda number: (number + 1) * GOLDEN % 1)
    spread = dict.fromkeys(each for number in places for each in groups[number])
    return [each for each in first | spread if each in index.places]


def chunks(episodes: Sequence[str]) -> Iterator[list[str]]:
    """Yield parts of at most `CHUNK` episodes."""
    for start in range(0, len(episodes), CHUNK):
        yield list(episodes[start : start + CHUNK])
