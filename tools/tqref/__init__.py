# SPDX-License-Identifier: MIT
"""The executable specification: docs/format.md in plain Python, one module per chapter."""
