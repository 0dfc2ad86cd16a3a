# Commands for those who work on this project. They need only Go. Tests that need other programs install them where they
# can; otherwise they are skipped, and the last lines say so. The tools are pinned in a module of their own,
# tools/go.mod.

export PATH := $(CURDIR)/.tools/bin:$(PATH)

TOOL := go tool -modfile=tools/go.mod

.PHONY: run quick test race test-clocks test-clocks-short e2e compose-test test-valkey soak fmt fmt-check vet lint lines prose tidy-check generate generate-check fuzz bench bench-libraries size licences release-test interop attack attack-short ci

run: ## serve the example rules of config/domains, counting in memory
	go run ./cmd/ratelimitd --rules config/domains

quick: fmt-check ## all that needs Go alone, in under three minutes: before each commit
	go vet ./...
	go test -short ./...

test: ## all tests, after getting what they need besides Go; the last lines say what was left out and what failed
	go run ./scripts/suite

race: ## what runs concurrently, with the race detector: docs/do/testing.md
	go run ./scripts/suite -race -skip '$(ONE_AT_A_TIME)' $$(go list ./... | sed 's|^$(MODULE)|.|' | grep -vE '^($(NO_CONCURRENCY))$$') ./e2e ./e2e/h2spec ./e2e/interop ./e2e/outages

MODULE := github.com/ratelimitd/ratelimitd

# Tests that ask one thing after the other, most of them of commands that end; one that is a long calculation (of what
# leases may admit, whose concurrency TestNeverAdmitsTooMuch has too); and packages without a goroutine.
ONE_AT_A_TIME := Help|DefaultsAre|MistakesOf|ExitCodes|Manual|YAMLIs|StandardInput|Completion|Completed|Document|OddValues|VariablesWithoutEffect|VariablesThatCannotBe|RefusesToStart|Conformance|CheckCommand|Cookbook|Tutorial|Simulate|Picture|Schema|Mutants|KeyFormats|Million|HeavyKey|HoldThenStorm|LimitReq|ManyOverrides|ImportOfALarge|OverridesWithoutRoom|BytesPer|LittleMemory|InheritIsBounded|InheritManyTimes|CostOf|GivesMemoryBack|Secrets|SoakCardinality
NO_CONCURRENCY := .|./internal|./internal/(accesslog|descriptor|explain|rulecheck|ruleschema|redistest|simulate/report)|./docs/.*|./scripts/.*

test-clocks: ## all tests at other times than now: ends of days and years, a leap day, zones. Takes an hour
	scripts/install-redis
	scripts/install-cc
	scripts/test-clocks

test-clocks-short: ## the tests that ask a running service, in the hour where most windows begin together
	scripts/install-redis
	scripts/install-cc
	AT=2027-03-04T00:00:10Z RUN='$(CLOCK_TESTS)' scripts/test-clocks ./cmd/ratelimitd ./internal/backend/redis

CLOCK_TESTS := Conformance|Lyft|BothFleets|KeyFormats|EveryVariable/USE_CALENDAR|Tutorial|Cookbook|Reset

e2e: ## the tests with a real Envoy, which is installed first: docs/understand/e2e.md
	scripts/install-redis
	scripts/install-envoy
	scripts/install-nginx
	cd e2e && go test -timeout 10m -count 1 -v .

interop: ## gRPC clients of other languages against the service; installs their libraries into .tools: docs/do/testing.md
	scripts/install-redis
	cd e2e && RATELIMITD_INTEROP=1 go test -timeout 30m -count 1 -v ./interop

compose-test: ## docker-compose.yml in real containers; needs root: docs/do/containers.md
	scripts/install-redis
	scripts/install-envoy
	scripts/install-promtool
	-scripts/install-docker
	cd deploy && RATELIMITD_CONTAINERS=1 go test -timeout 50m -count 1 -v ./containers

test-valkey: ## the tests of the stores and of the connections to Redis, on Valkey: docs/do/redis.md
	scripts/install-valkey
	RATELIMITD_TEST_REDIS_SERVER=$(CURDIR)/.tools/valkey/current/valkey-server go test -count 1 ./internal/backend/redis ./internal/redisconn
.PHONY: site
site: ## the documentation as a site in .tools/site/dist; opens every page in a browser. Needs npm: docs/do/testing.md
	scripts/site
	scripts/install-browser
	scripts/install-axe
	cd e2e && RATELIMITD_SITE=1 go test -timeout 10m -count 1 -run 'Site|ConsolePages' ./browser

soak: ## what takes a minute and longer
	RATELIMITD_SOAK=1 go test -timeout 60m -run Soak -v ./...
	cd e2e && RATELIMITD_SOAK=1 go test -timeout 60m -run Soak -v ./...

fmt: ## format all Go code
	gofmt -w $$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$')

fmt-check: ## fail if something is not formatted
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$')); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; fi

vet:
	go vet ./...
	cd bench/libraries && go vet ./...
	cd deploy && go vet ./...
	cd e2e && go vet ./...

lint: ## the linters of .golangci.yml, buf's, and actionlint for the workflows
	$(TOOL) golangci-lint run ./...
	cd bench/libraries && go tool -modfile=../../tools/go.mod golangci-lint run -c ../../.golangci.yml ./...
	cd deploy && go tool -modfile=../tools/go.mod golangci-lint run -c ../.golangci.yml ./...
	cd e2e && go tool -modfile=../tools/go.mod golangci-lint run -c ../.golangci.yml ./...
	$(TOOL) buf lint
	go tool -modfile=tools/checks/go.mod actionlint

lines: ## how much there is to read: lines of code and words of documents, by folder
	go run ./scripts/lines

prose: ## the English of docs, help, messages and comments: CONTRIBUTING.md
	go run ./scripts/prose

tidy-check: ## fail if go.mod does not say what is used
	go mod tidy -diff
	cd bench/libraries && go mod tidy -diff
	cd deploy && go mod tidy -diff
	cd e2e && go mod tidy -diff

generate: ## the Go code of proto/, and its OpenAPI
	$(TOOL) buf generate
	$(TOOL) buf generate --template buf.gen.callers.yaml
	$(TOOL) buf build --path proto/ratelimitd/v1 --exclude-imports --exclude-source-info --as-file-descriptor-set -o internal/server/callers.binpb

generate-check: ## fail if the committed generated code is not what proto/ gives
	rm -rf .generated && mkdir .generated && $(TOOL) buf generate -o .generated && $(TOOL) buf generate --template buf.gen.callers.yaml -o .generated
	mkdir -p .generated/internal/server && $(TOOL) buf build --path proto/ratelimitd/v1 --exclude-imports --exclude-source-info --as-file-descriptor-set -o .generated/internal/server/callers.binpb
	@for f in $$(cd .generated && find . -type f); do cmp ".generated/$$f" "$$f" || { echo "run make generate"; exit 1; }; done; rm -rf .generated

fuzz: ## every fuzz target for twenty seconds: docs/do/testing.md
	scripts/fuzz 20s

bench: ## what a decision costs, as ratios in one run; what a counter costs in Redis and in memory
	go run ./bench -half p
	go run ./bench -keys 1 -half p
	go run ./bench -observing -rounds 400 -duration 60ms -warmup 10ms
	go run ./bench -reservations -rounds 30 -duration 250ms -warmup 50ms
	go test ./client -run '^$$' -bench Decide -benchtime 2s
	go test ./client -run '^$$' -bench Overrun -benchtime 3s
	go test ./internal/limiter -run '^$$' -bench Observing -benchtime 2000x
	go test ./internal/limiter -run '^$$' -bench Reservation -benchtime 1000x
	go test ./internal/backend/redis -run '^$$' -bench Bytes -benchtime 1x
	go test ./internal/backend/redis -run '^$$' -bench CPU -benchtime 50000x
	go test ./internal/backend/memory -run '^$$' -bench Bytes -benchtime 1x

bench-libraries: ## package ratelimit beside other Go libraries, in a quarter of an hour: docs/understand/libraries.md
	scripts/install-redis
	cd bench/libraries && go run .

size: ## how large the released program is; more than 28 MB fails
	scripts/size

licences: ## the licences of all dependencies: fail for one that is not allowed
	scripts/licences

release-test: ## make a release of the last commit as far as that needs no network, and test it: docs/do/release.md
	scripts/release-test

attack: ## what one client can do to the others, in about fifteen minutes: docs/understand/attacks.md
	go run ./attack

attack-short: ## the same in two minutes
	go run ./attack -short

ci: ## all that a change must pass
	.ci/run
