"""Networks that are read wrongly on purpose, in one place each: what the comparison with the runtime makes of them."""
