"""The page of `braid report` and `braid watch`: what a run recorded, as HTML that needs no network."""
