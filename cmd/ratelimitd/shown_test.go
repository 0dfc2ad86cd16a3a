package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// followed are the pages whose commands TestTutorial runs.
var followed = []struct {
	page, folder string
	commands     int  // at least
	installed    bool // the reader has the program; otherwise the page says how to build it
}{
	{"learn/tutorial.md", "tutorial", 20, false},
	{"learn/first-limit.md", "first-limit", 8, false},
	{"do/blocked-customer.md", "blocked-customer", 6, true},
	{"do/checking-rules.md", "checking-rules", 3, true},
	{"do/cookbook.md", "cookbook", 1, true},
	{"learn/algorithms.md", "algorithms", 1, true},
	{"do/events.md", "events", 3, true},
	{"do/from-limitador.md", "shop", 8, false},
	{"do/migrate.md", "migrate", 5, true},
	{"do/monitor.md", "monitor", 6, true},
	{"do/overrides.md", "overrides", 5, true},
	{"do/production.md", "production", 5, true},
	{"do/roll-out.md", "roll-out", 3, true},
	{"do/runbook.md", "runbook", 20, true},
	{"do/simulating.md", "simulating", 5, true},
	{"do/sizing.md", "sizing", 2, true},
	{"do/testing-rules.md", "testing-rules", 3, true},
	{"do/troubleshooting.md", "troubleshooting", 12, true},
	{"reference/http-api.md", "http-api", 8, true},
}

// heldElsewhere are pages whose commands other tests run, or hold against the files they name.
var heldElsewhere = []string{
	"do/containers.md",        // deploy/containers
	"do/install.md",           // deploy: release_test.go
	"do/kubernetes.md",        // deploy: TestKubernetesPage
	"contributing/release.md", // deploy: release_test.go
}

// notRun lists, by reason, the commands of pages that no test runs. A page's command is here or is run.
var notRun = map[string][]string{
	"it needs a cluster": {
		`kubectl get pods -l app.kubernetes.io/name=ratelimitd`,
		`kubectl logs POD --previous | tail -50`,
		`kubectl logs POD | grep -i redis | tail`,
		`kubectl logs POD | grep -i xds | tail`,
		`kubectl logs POD | grep -i -A30 panic`,
		`kubectl logs POD | grep 'lost changes of overrides'`,
		`kubectl logs POD | grep -i overrides | tail`,
		`kubectl logs POD | grep 'a region does not answer' | tail`,
		`kubectl logs POD | grep 'resets and refunds'`,
		`kubectl get configmap ratelimitd-rules -o yaml | head`,
		`kubectl port-forward pod/NEW 8080 6070`,
		`kubectl port-forward pod/OLD 18080:8080`,
		`kubectl rollout resume deployment/ratelimit`,
		`kubectl rollout resume deployment/ratelimit; kubectl rollout undo deployment/ratelimit`,
		`kubectl rollout pause deployment/ratelimit`,
		`kubectl set env deployment/ratelimit REDIS_KEY_FORMAT=lyft`,
		`kubectl set image deployment/ratelimit ratelimit=REGISTRY/ratelimitd`,
		`kubectl rollout resume deployment/ratelimit && sleep 5 && kubectl rollout pause deployment/ratelimit`,
		`mkdir rules && kubectl get configmap ratelimit-config -o jsonpath='{.data.config\.yaml}' > rules/config.yaml`,
		"for port in 18080 8080 18080 8080; do curl -s localhost:$port/json -d '{\"domain\": \"messaging\", \"descriptors\":",
	},
	"it needs dockerd; deploy/containers starts the same files": {
		`docker build -t REGISTRY/ratelimitd . && docker push REGISTRY/ratelimitd`,
		`docker compose up --build`,
		`docker run --rm -v "$PWD/rules:/rules" REGISTRY/ratelimitd check /rules`,
	},
	"its program is not among those that the tests install; tests in Go make the same calls": {},
	"it needs a server of the reader's": {
		`ratelimitd conform --target localhost:8081 --rules /srv/ratelimit/config`,                                              // TestConform
		`CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=control-plane:18000 CONFIG_GRPC_XDS_NODE_ID=ratelimit ratelimitd`, // xds_test.go has one
		`gh pr comment --body-file comment.md`,
		`nc -vz XDS_HOST XDS_PORT`,
	},
	"it measures, or runs tests, for minutes": {
		`go test ./internal/config/override/redissource -run '^$' -bench Million`,
		`.ci/run`,
		`.ci/run 'make lint' workshop/scripts/size`,
		`go run ./workshop/attack -short`,
		`workshop/scripts/licences`,
		`go run ./workshop/attack -binary ./older-ratelimitd`,
		`go run ./workshop/attack -profiles /tmp`,
		`go run ./workshop/attack -short -only flood,streams`,
		`go test ./workshop/models`,
		`go test ./internal/lending/regions -run 'Exhausted|Parts' -v`,
		`go run ./workshop/bench -keys 1`,
		`go run ./workshop/bench -shapes .`,
		`go run ./workshop/bench -reservations`,
		`go test -run '^$' -bench Memory`, // these three: workshop/bench/libraries
		`go test -run '^$' -bench Storm -benchtime 20x`,
		`go test -run '^$' -bench Places -benchtime 1x`,
		`go run ./workshop/scripts/mutants PACKAGE`,
		`go test ./workshop/matrix`,
		`go test ./internal/backend/redis -run '^$' -bench ColdKeys -benchtime 100000x`,
		`go test ./internal/backend/memory -run '^$' -bench Bytes -benchtime 1x`,
		`go test ./internal/backend/redis -run '^$' -bench Bytes -benchtime 1x`,
		`go test ./internal/backend/redis -run '^$' -bench CPU -benchtime 50000x`,
		`go test ./internal/backend/redis -run '^$' -bench ColdKeys -benchtime 100000x`,
		`go test -run '^$' -bench 'Take|Together|Add|Collect|Hold' ./internal/backend/memory`,
		`go test -run '^$' -bench . ./internal/descriptor`,
		`RATELIMITD_TEST_REDIS_SERVER=/usr/bin/valkey-server go test ./internal/backend/redis ./internal/backend/redisconn`,
	},
	"it writes files of the project; a test compares them": {
		`go run ./docs/figures`,
		`go test ./internal/authoring/ruleschema -update`,
		`go test ./internal/operator -update`,
		`go test ./cmd/ratelimitd -run TestSettingsPage -update`,
		`git fetch --tags --unshallow`,
	},
	"another test runs it": {
		`make simulate SEED=7`,
		`go run ./cmd/ratelimitd --rules config/domains`, // TestReadmeRequests starts the same service
		"for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{http_code}\\n' localhost:8080/json -d '{\"domain\": \"messaging\",", // TestReadmeRequests
		`ratelimitd help settings`,
		`ratelimitd serve --help`,
		`ratelimitd simulate --rules rules --format apache --descriptor remote_address=ip --descriptor method=method,path=path --log access.log`, // these three, each with a log of its format: simulate_test.go
		`ratelimitd simulate --rules rules --format json --time start_time --descriptor tenant=headers.x-tenant --log access.log`,
		`ratelimitd simulate --rules rules --format nginx --descriptor remote_address=ip --log access.log`,
		`envoy -c proxy.yaml`, // these two of the tutorial: workshop/e2e
		`for i in $(seq 61); do curl -s -o /dev/null -w '%{http_code}\n' localhost:10000/; done | sort | uniq -c`,
		`python limit.py messaging message_type=marketing to_number=2065551234`, // workshop/e2e/interop
	},
	"it needs GitHub": {
		`go get github.com/ratelimitd/ratelimitd@main`,
	},
	"it is a part of a command, or has a name to fill in": {
		`go test -overlay`,
		`go test -short`,
		`openssl rand -hex 32`,
		`ratelimitd COMMAND --help`,
		`ratelimitd check --overrides FILE RULES`,
		`ratelimitd override import COPY.version-N`,
	},
}

// programs are the programs with which a shown command begins. Two words are a name, such as "make test" or "ratelimitd check".
const programs = `(?:[A-Z_]+=\S+ )*(?:ratelimitd|brew|cat|cargo|curl|docker|echo|git|gh|go|grpcurl|helm|istioctl|jq|kill|kubectl|ls|make|mkdir|nc|nohup|npm|openssl|promtool|redis-cli|source|ssh|sudo|systemctl|tail|wget|zcat|\.ci/run|\./\S+)`

var (
	betweenBlocks = regexp.MustCompile("(?m)^<!-- (?:run|serve): .+ -->$|^    (" + programs + `\b(?:.*\\\n)*.*)$` + "|`(" + programs + " [^`]+)`")
	shellBlock    = regexp.MustCompile("(?s)```(console|shellsession)\n(.*?)```\n")
	behindCommand = regexp.MustCompile(`(?m) +# .*$`)
)

// pageCommands returns the commands of a text outside of its blocks: in indented lines and in code, and the comments that stand
// for what a reader has done before (see tutorialBlock).
func pageCommands(text string) (commands []string) {
	for _, m := range betweenBlocks.FindAllStringSubmatch(text, -1) {
		switch {
		case m[1] != "":
			commands = append(commands, behindCommand.ReplaceAllString(m[1], ""))
		case m[2] == "":
			commands = append(commands, m[0])
		case len(strings.Fields(m[2])) > 2:
			commands = append(commands, strings.Join(strings.Fields(m[2]), " "))
		}
	}
	return commands
}

func whyNotRun(command string) (reason string, found bool) {
	for reason, commands := range notRun {
		if slices.Contains(commands, command) {
			return reason, true
		}
	}
	return "", false
}

// Every command that a page shows is run by a test, or notRun says why not.
func TestEveryShownCommandIsRun(t *testing.T) {
	const root = "../.."
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	model, _ := modelOf(t)
	named := make(map[string]bool)
	for _, n := range model.Children {
		named["ratelimitd "+n.Name] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllSubmatch(makefile, -1) {
		named["make "+string(m[1])] = true
	}
	names := regexp.MustCompile("`((?:ratelimitd|make) [a-z][a-z0-9-]*)`")
	used := make(map[string]bool)
	var run int
	page := func(name string) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		name = strings.TrimPrefix(filepath.ToSlash(name), "docs/")
		for _, m := range names.FindAllSubmatch(text, -1) {
			if !named[string(m[1])] {
				t.Errorf("%s: there is no %q", name, m[1])
			}
		}
		if slices.Contains(heldElsewhere, name) {
			return
		}
		isFollowed := false
		for _, f := range followed {
			isFollowed = isFollowed || f.page == name
		}
		held := func(command string, runs bool) {
			_, not := whyNotRun(command)
			fields := strings.Fields(command)
			switch {
			case not:
				used[command] = true
			case runs:
				run++
			case len(fields) == 2 && named[command]: // a target of make, which .ci/run or a person runs
			default:
				t.Errorf("%s shows a command that is neither run (followed) nor listed with a reason (notRun): %s", name, command)
			}
		}
		end := 0
		for _, at := range tutorialBlock.FindAllIndex(text, -1) {
			for _, c := range pageCommands(string(text[end:at[0]])) {
				if !tutorialSetUp.MatchString(c) {
					held(c, isFollowed)
				}
			}
			end = at[1]
			for _, m := range shellBlock.FindAllStringSubmatch(string(text[at[0]:at[1]]), -1) {
				for _, c := range strings.Split("\n"+m[2], "\n$ ")[1:] {
					line, rest, _ := strings.Cut(c, "\n")
					for strings.HasSuffix(line, "\\") {
						next, behind, _ := strings.Cut(rest, "\n")
						line, rest = line+"\n"+next, behind
					}
					held(behindCommand.ReplaceAllString(line, ""), m[1] == "console" && (isFollowed || name == "reference/commands.md"))
				}
			}
		}
		for _, c := range pageCommands(string(text[end:])) {
			if !tutorialSetUp.MatchString(c) {
				held(c, isFollowed)
			}
		}
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"} {
		page(name)
	}
	err = filepath.WalkDir(root+"/docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			rel, _ := filepath.Rel(root, path)
			page(rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for reason, commands := range notRun {
		for _, c := range commands {
			if !used[c] {
				t.Errorf("notRun has a command that no page shows (%s): %s", reason, c)
			}
		}
	}
	if run < 100 {
		t.Errorf("only %d commands are run", run)
	}
}
