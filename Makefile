# Commands for those who work on this project. They need only Go. Tests that need other programs install them where they
# can; otherwise they are skipped, and the last lines say so. The tools are pinned in a module of their own, workshop/tools/go.mod.
# What is needed more rarely is in scripts/: docs/contributing/testing.md lists all commands.

export PATH := $(CURDIR)/.tools/bin:$(PATH)

TOOL := go tool -modfile=workshop/tools/go.mod
MODULES := envoymodule workshop/bench/libraries deploy workshop/e2e examples/routers # besides the root and the tools

GO_FILES = $$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$')
FORMATTED = unformatted=$$(gofmt -l $(GO_FILES)); [ -z "$$unformatted" ] || { echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; }

# GENERATE writes the generated files below a directory.
define GENERATE
$(TOOL) buf generate -o $(1) && $(TOOL) buf generate --template buf.gen.clients.yaml -o $(1) && \
	$(TOOL) buf build --path proto/ratelimitd/v1 --exclude-imports --exclude-source-info --as-file-descriptor-set -o $(1)/internal/server/clients.binpb
endef

.PHONY: run quick test simulate e2e soak site fmt lint lines prose generate bench attack ci

run: ## serve the example rules of config/domains, counting in memory
	go run ./cmd/ratelimitd --rules config/domains

quick: ## all that needs Go alone, in under two minutes: before each commit
	@$(FORMATTED)
	go vet ./...
	go test -short -p 4 ./... # many of them wait for something else than a core

test: ## all tests, after getting what they need besides Go; those that need only Go run with the race detector too
	workshop/scripts/test

simulate: ## run the simulated history of one SEED, and print what happens in it
	go test ./workshop/simulate -run 'TestSeeds$$' -count 1 -v -args -seed $(SEED)

e2e: ## the tests with a real Envoy, which is installed first: docs/contributing/e2e.md
	workshop/scripts/install-redis
	workshop/scripts/install-envoy
	workshop/scripts/install-nginx
	cd workshop/e2e && go test -timeout 10m -count 1 -v .

site: ## the documentation as a site in .tools/site/dist; opens every page in a browser. Needs npm: docs/contributing/testing.md
	workshop/scripts/site
	workshop/scripts/install-browser
	workshop/scripts/install-axe
	cd workshop/e2e && RATELIMITD_SITE=1 go test -timeout 10m -count 1 -run 'Site|ConsolePages' ./browser

soak: ## what takes a minute and longer
	RATELIMITD_SOAK=1 go test -timeout 60m -run Soak -v ./...
	cd workshop/e2e && RATELIMITD_SOAK=1 go test -timeout 60m -run Soak -v ./...

fmt: ## format all Go code
	gofmt -w $(GO_FILES)

lint: ## the linters of .golangci.yml, buf and actionlint; format, go.mod and generated code
	@$(FORMATTED)
	go mod tidy -diff
	for module in $(MODULES); do (cd $$module && go mod tidy -diff) || exit 1; done
	rm -rf .generated && mkdir -p .generated/internal/server && $(call GENERATE,.generated)
	@for f in $$(cd .generated && find . -type f); do cmp ".generated/$$f" "$$f" || { echo "run make generate"; exit 1; }; done; rm -rf .generated
	$(TOOL) golangci-lint run ./...
	for module in $(MODULES); do (cd $$module && go tool -modfile=$(CURDIR)/workshop/tools/go.mod golangci-lint run -c $(CURDIR)/.golangci.yml ./...) || exit 1; done
	$(TOOL) buf lint
	go tool -modfile=workshop/tools/checks/go.mod actionlint

lines: ## how much there is to read: lines of code and words of documents, by directory
	workshop/scripts/lines

prose: ## the English of docs, help, messages and comments: CONTRIBUTING.md
	go run ./workshop/scripts/prose

generate: ## the Go code of proto/, and its OpenAPI
	$(call GENERATE,.)

bench: ## what a decision costs, as ratios in one run; what a counter costs in Redis and in memory
	go run ./workshop/bench -half a
	go run ./workshop/bench -keys 1 -half a
	go run ./workshop/bench -shapes . -duration 1s
	go run ./workshop/bench -reservations -rounds 30 -duration 250ms -warmup 50ms
	go test ./client -run '^$$' -bench Decide -benchtime 2s
	go test ./client -run '^$$' -bench Overrun -benchtime 3s
	go test ./internal/limiter -run '^$$' -bench Observing -benchtime 2000x
	go test ./internal/limiter -run '^$$' -bench Reservation -benchtime 1000x
	go test ./internal/backend/redis -run '^$$' -bench Bytes -benchtime 1x
	go test ./internal/backend/redis -run '^$$' -bench CPU -benchtime 50000x
	go test ./internal/backend/memory -run '^$$' -bench Bytes -benchtime 1x

attack: ## what one client can do to the others, in about fifteen minutes: docs/contributing/attacks.md
	go run ./workshop/attack

ci: ## all that a change must pass
	.ci/run
