"""The rules that find causes of lost time in a recorded run. ``examine.RULES`` orders them."""
