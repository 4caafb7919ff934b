"""`braid quickstart`: a tiny model learns by reinforcement, on a laptop, in minutes.

Every part is the real one: the commands that it runs are printed, and are what a user types for a run of their own.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from braidrl.configs.core.errors import ConfigError
from braidrl.entrypoints import rl
from braidrl.launch.contract import Process
from braidrl.launch.local import LocalLauncher
from braidrl.launch.supervisor import ProcessFailed, Supervisor
from braidrl.launch.wiring import POLL_SECONDS
from braidrl.utils.process import available_cores, environment
from braidrl.utils.run_folder import RunFolder

RECIPE = "grpo"
SFT_STEPS = 300
HELDOUT = "heldout"
"""Name of the recipe's evaluation source."""


def main(args: list[str]) -> int:
    """Exit codes as of `braid rl`."""
    parser = argparse.ArgumentParser(prog="braid quickstart", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("outputs/quickstart"),
        help="where everything goes (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights, tasks and sampling (default: %(default)s)"
    )
    parser.add_argument("--clean", action="store_true", help="remove what lies in the output folder first")
    options = parser.parse_args(args)
    folder: Path = options.output_dir
    if options.clean:
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            "--output-dir", f"{folder} is not empty; remove it with --clean or choose another folder"
        )
    return Quickstart(folder, options.seed, recipe_folder(), Console()).run()


def recipe_folder() -> Path:
    """The recipe's config files: beside the package when installed, in the repository when developed."""
    package = Path(__file__).parents[1]
    candidates = [package / "examples" / RECIPE, package.parents[1] / "examples" / RECIPE]
    return next(path for path in candidates if path.is_dir())


class Quickstart:
    """Three acts: a model from code, a warm-up on demonstrations, reinforcement learning."""

    def __init__(self, folder: Path, seed: int, recipe: Path, console: Console) -> None:
        self.folder = folder
        self.seed = str(seed)
        self.recipe = recipe
        self.console = console
        self.model = folder / "model"
        self.sft = RunFolder(folder / "sft")
        self.rl = RunFolder(folder / "rl")

    def run(self) -> int:
        """Play all acts, then tell what was learned."""
        started = time.monotonic()
        try:
            self._act(
                "1/3",
                "make a tiny model from code (no download)",
                ["tiny-model", str(self.model), "--seed", self.seed],
            )
            self._act(
                "2/3",
                "warm it up on demonstrations, most of which only copy the text",
                self._sft_args(),
                SFT_STEPS,
            )
        except ProcessFailed as failure:
            print(f"braid quickstart: error: {failure}", file=sys.stderr)
            return 1
        args = self._rl_args()
        self._announce(
            "3/3", "reinforcement learning: it finds out that only the reversed text is rewarded", args
        )
        code = rl.main(args[1:])
        if code == 0:
            self._tell()
            self.console.print(f"\nall of it took {time.monotonic() - started:.0f} s")
        return code

    def _sft_args(self) -> list[str]:
        paths = ["--model.path", str(self.model), "--output-dir", str(self.sft.root)]
        return [
            "sft",
            "@",
            str(self.recipe / "sft.toml"),
            *paths,
            "--max-steps",
            str(SFT_STEPS),
            "--seed",
            self.seed,
        ]

    def _rl_args(self) -> list[str]:
        paths = ["--model.path", str(self.sft.weights(SFT_STEPS)), "--output-dir", str(self.rl.root)]
        return ["rl", "@", str(self.recipe / "rl.toml"), *paths, "--seed", self.seed]

    def _act(self, number: str, what: str, args: list[str], steps: int = 0) -> None:
        """Run one command to its end, its log in the output folder."""
        from braidrl.report.progress import Progress

        self._announce(number, what, args)
        log = self.folder / f"{args[0]}.log"
        with Supervisor(LocalLauncher(stop_timeout=10.0)) as supervisor:
            supervisor.start(Process(args[0], tuple(args), log, environment(available_cores())))
            with Progress(self.sft, steps, ("trainer",), self.console, every=max(1, steps // 10)) as progress:
                while not supervisor.finished():
                    supervisor.check()
                    progress.update()
                    time.sleep(POLL_SECONDS)
                progress.update()

    def _announce(self, number: str, what: str, args: list[str]) -> None:
        self.console.print(f"\n[bold]{number} {what}[/bold]")
        self.console.print(f"$ braid {' '.join(args)}", style="dim", highlight=False, soft_wrap=True)

    def _tell(self) -> None:
        from braidrl.report import plot, rewards

        steps, curve = rewards.training_curve(self.rl)
        heldout = rewards.heldout_rewards(self.rl, HELDOUT)
        before, after = heldout[0], heldout[-1]
        picture = self.folder / "reward.png"
        plot.save_reward_plot(
            picture, steps, curve, [(each.version, each.mean, each.ci95) for each in heldout]
        )
        self.console.print("\n" + plot.terminal_plot(steps, curve), highlight=False, markup=False)
        self.console.print(
            f"held-out reward: {before.mean:.3f} ± {before.ci95:.3f} before, {after.mean:.3f} ± {after.ci95:.3f} after"
            f" ({after.mean - before.mean:+.3f}; 95% intervals)",
            soft_wrap=True,
            highlight=False,
        )
        self._show_rollouts(before.version, after.version)
        self.console.print(f"\npicture of the curve: {picture}", highlight=False, soft_wrap=True)
        self.console.print(
            NEXT.format(run=self.rl.root, recipe=self.recipe, model=self.sft.weights(SFT_STEPS)),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _show_rollouts(self, before: int, after: int) -> None:
        """The same held-out task under both policies: the one that gained most."""
        from braidrl.report import rewards

        first, last = rewards.eval_episodes(self.rl, before), rewards.eval_episodes(self.rl, after)
        key = max(
            first.keys() & last.keys(), key=lambda key: rewards.reward(last[key]) - rewards.reward(first[key])
        )
        self.console.print("\nthe held-out task that gained most:")
        for label, record in (("before", first[key]), ("after", last[key])):
            messages = "  ".join(f"{role}: {text!r}" for role, text in rewards.conversation(record))
            self.console.print(
                f"  {label:<7}{messages}  reward {rewards.reward(record):.2f}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


NEXT = """
what to try next:
  every token of every rollout  braid report {run}
  every metric                  tail -n 1 {run}/metrics/trainer.jsonl
  another learning rate         braid rl @ {recipe}/rl.toml --model.path {model} \\
                                  --output_dir outputs/try --trainer.optim.lr 1e-4
  strictly on-policy            ... --orchestrator.max_off_policy_steps 0
  a 135M-parameter model        see {recipe}/README.md"""
