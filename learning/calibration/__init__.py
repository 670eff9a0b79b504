"""Correcting predictions online by the lengths of real answers, and measuring how good recent ones were."""
