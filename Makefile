# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
.PHONY: install serve test sanitize lint typecheck bench

install:
	scripts/install

serve:
	scripts/serve

test:
	scripts/test

sanitize:
	scripts/sanitize

lint:
	scripts/lint

typecheck:
	scripts/typecheck

bench:
	benchmarks/run
