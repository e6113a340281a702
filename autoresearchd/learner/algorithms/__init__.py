"""GRPO, PPO, SDPO and supervised fine-tuning: objectives over what a model says of its completions."""
