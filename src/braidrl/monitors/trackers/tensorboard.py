"""TensorBoard tracker with TensorBoard's own event writer, so neither TensorFlow nor torch is needed."""

import json
import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from braidrl.configs.trackers import TensorBoardTrackerConfig
from braidrl.monitors.trackers.contract import Tracked


class TensorBoardTracker:
    """Event files in one folder. After a resume, the new file supersedes steps that are repeated."""

    def __init__(self, config: TensorBoardTrackerConfig, tracked: Tracked) -> None:
        folder = config.folder or tracked.folder
        self.writer = EventFileWriter(str(folder / config.name if config.name else folder))
        if tracked.after:
            # TensorBoard discards events at or after the step of a START event.
            self._add(tracked.after + 1, session_log=SessionLog(status=SessionLog.START))
        self._add(0, summary=Summary(value=[_text("config", json.dumps(tracked.settings, indent=2))]))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=Summary(value=values))

    def close(self, status: str) -> None:
        self._add(0, summary=Summary(value=[_text("status", status)]))
        self.writer.close()

    def _add(self, step: int, **payload: Summary | SessionLog) -> None:
        self.writer.add_event(Event(wall_time=time.time(), step=step, **payload))
        self.writer.flush()


def _text(tag: str, text: str) -> Summary.Value:
    """Return a value for TensorBoard's Text tab, indented so that Markdown shows it verbatim."""
    indented = "\n".join(f"    {line}" for line in text.splitlines())
    return Summary.Value(
        tag=f"{tag}/text_summary",
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(dtype=DT_STRING, string_val=[indented.encode()]),
    )
