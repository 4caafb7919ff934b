"""One module a protection from off-policy data (seed 002, section 1.3; SPEC section 5). Nothing has a gradient here."""
