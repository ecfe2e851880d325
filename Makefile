# Two commands do everything on a fresh Debian machine: make hunt, make test. `make` alone lists all.

BIN    := bin/nlfuzz
KERNEL ?= debian:7.3
SEED   ?= 0
OUT    ?= findings

.PHONY: help setup build hunt test unit live lint clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is missing (Go, QEMU, iproute2) with apt-get; says what it does
	@.ci/setup

build: setup ## build bin/nlfuzz, static: it is also the init of the guests
	@CGO_ENABLED=0 go build -trimpath -o $(BIN) ./cmd/nlfuzz

hunt: build ## find a real fault of a real kernel, shrink it, print the script (2 to 15 minutes; pulls some 60 MB)
	@echo "hunt: pulls $(KERNEL) once, boots it in QEMU, and fuzzes until the first finding (mostly 1 to 5 minutes), then shrinks it and runs its script"
	@$(BIN) run --kernel $(KERNEL) --seed $(SEED) --time 10m --findings 1 --out $(OUT); code=$$?; \
	  if [ $$code -eq 1 ]; then echo "hunt: found; the script is below $(OUT)/"; exit 0; fi; \
	  if [ $$code -eq 0 ]; then echo "hunt: nothing found in 10 minutes; try another SEED=N" >&2; exit 1; fi; exit $$code

test: build lint unit live ## all tests: unit tests, then live tests in guests (under 15 minutes)

unit: ## unit tests under the race detector where a C compiler is at hand
	@if command -v gcc >/dev/null; then race=-race; else echo "unit: no gcc, so without the race detector"; fi; \
	  echo "unit tests (2 to 4 minutes)"; go test -v -skip '^(TestLive|TestRecord)' $$race ./... 2>&1 | .ci/summary unit

live: build ## live tests: real netlink in guests with Debian kernels (pulled once)
	@echo "live tests in guests (5 to 10 minutes; pulls debian:6.1 and debian:7.3 once)"
	@$(BIN) kernel pull debian:6.1 debian:7.3
	@NLFUZZ_TEST_NET=1 NLFUZZ_LIVE=debian:6.1,debian:7.3 NLFUZZ_BIN=$(abspath $(BIN)) \
	  go test -p 1 -count=1 -v -timeout 20m -run '^TestLive' ./... 2>&1 | .ci/summary live strict

lint: ## gofmt and go vet
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "gofmt wants: $$bad"; exit 1; fi
	@go vet ./...

clean: ## remove what was built and found here; pulled kernels stay in the cache (nlfuzz doctor says where)
	@rm -rf bin findings
