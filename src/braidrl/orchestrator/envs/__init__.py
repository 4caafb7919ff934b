from braidrl.orchestrator.envs.source import EvalEnv, TrainEnv

__all__ = ["EvalEnv", "TrainEnv"]
