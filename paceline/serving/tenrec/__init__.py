"""The pipeline of two-stage recommendation: what the tenrec recipe's data and models are as stages."""
