"""`braid samplers [TYPE]`: what `curriculum.sampler.type` may be, in this installation; of one type, all there is to
know."""

from braidrl.configs.curriculum.samplers import BaseSamplerConfig
from braidrl.configs.plugins import SAMPLERS
from braidrl.entrypoints.catalogue import Catalogue


def main(args: list[str]) -> int:
    catalogue = Catalogue(SAMPLERS, "curriculum.sampler.", frozenset({"type"}), facts, implementation)
    return catalogue.main("braid samplers", __doc__ or "", args)


def facts(config: type[BaseSamplerConfig]) -> dict[str, str]:
    """What a sampler chooses from."""
    return {"tasksets": "finite" if config.finite_only else "finite and infinite"}


def implementation(config: type[BaseSamplerConfig]) -> object:
    from braidrl.orchestrator.train.curriculum import sampler_class

    return sampler_class(config)
