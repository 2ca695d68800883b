"""Recipes and studies of the five papers that Turnout implements: `turnout study`, `turnout run RECIPE`."""
