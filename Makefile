# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
.PHONY: install serve test test-fast test-frameworks test-no-fast-path properties fuzz-codecs attack simulate docs wheel sanitize lint typecheck bench

install:
	scripts/install

serve:
	scripts/serve

test:
	scripts/test

test-fast:
	scripts/test --fast

test-frameworks:
	scripts/test-frameworks

test-no-fast-path:
	scripts/test --no-fast-path tests/e2e

properties:
	scripts/properties

docs:
	scripts/docs

wheel:
	scripts/wheel

sanitize:
	scripts/sanitize

lint:
	scripts/lint

typecheck:
	scripts/typecheck

bench:
	benchmarks/run

SECONDS = 60
fuzz-codecs:
	scripts/fuzz-codecs $(SECONDS)

MINUTES = 60
attack:
	scripts/attack $(MINUTES)

SCENARIOS = 100000
simulate:
	scripts/simulate --scenarios $(SCENARIOS)
