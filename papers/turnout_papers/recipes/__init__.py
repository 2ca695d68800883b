"""Recipes of the papers, one module each; every public function here that makes experiments is a recipe."""
