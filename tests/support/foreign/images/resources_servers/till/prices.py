"""What an article costs, in cents."""

PRICES = {"apple": 40, "bread": 350, "candle": 125}
