package main

import (
	"slices"
	"strings"
	"testing"
)

// said is what go test -json says of a module: one test passes, one fails in a subtest, two are left out, one package does
// not compile, and one ends in the middle.
const said = `{"Action":"start","Package":"m/a"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/a","Test":"TestBad/sub","Output":"    a_test.go:7: it is wrong\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad/sub","Elapsed":0.1}
{"Action":"fail","Package":"m/a","Test":"TestBad","Elapsed":0.1}
{"Action":"output","Package":"m/a","Test":"TestRedis","Output":"    server.go:92: NOT RUN without redis-server: workshop/scripts/install-redis gets it\n"}
{"Action":"output","Package":"m/a","Test":"TestRedis","Output":"--- SKIP: TestRedis (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestRedis","Elapsed":0}
{"Action":"output","Package":"m/a","Test":"TestSoak","Output":"    a_test.go:9: takes long: make soak\n"}
{"Action":"skip","Package":"m/a","Test":"TestSoak","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"FAIL\n"}
{"Action":"fail","Package":"m/a","Elapsed":1.5}
{"ImportPath":"m/b","Action":"build-output","Output":"b/b.go:1:1: expected 'package'\n"}
{"Action":"fail","Package":"m/b","Elapsed":0,"FailedBuild":"m/b"}
{"Action":"output","Package":"m/c","Test":"TestOther","Output":"=== RUN   TestOther\n"}
{"Action":"output","Package":"m/c","Output":"exit status 3\n"}
{"Action":"fail","Package":"m/c","Elapsed":0.5}
{"Action":"skip","Package":"m/d","Elapsed":0}
{"Action":"output","Package":"m/e","Output":"ok  \tm/e\t(cached)\n"}
{"Action":"pass","Package":"m/e","Elapsed":0}
`

func TestSummary(t *testing.T) {
	var out strings.Builder
	r, other := newRun(nil, &out), newRun(nil, &out)
	other.race = true
	other.read(strings.NewReader(said), "deploy", "m")
	r.add(other)
	r.summarize()
	for _, want := range []string{
		"    a_test.go:7: it is wrong\n", "FAIL  m/a", "expected 'package'", "TestOther did not end:\n=== RUN   TestOther\n", "exit status 3\n", "ok    m/e", "(cached)\n",
		"\n1 tests of 1 packages passed\n",
		"\nnot asked for: 1 tests (takes long: make soak)\n",
		"\nLEFT OUT: 1 tests, without redis-server: workshop/scripts/install-redis gets it\n",
		"\nFAILED: 3. To run each again:\n",
		"  cd deploy && go test -count=1 -race -run '^TestBad$' ./a\n",
		"  cd deploy && go test -count=1 -race ./b\n",
		"  cd deploy && go test -count=1 -race ./c\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %q", want)
		}
	}
	for _, not := range []string{"TestGood", "m/d", "TestSoak did", "TestRedis did"} {
		if strings.Contains(out.String(), not) {
			t.Errorf("it has %q", not)
		}
	}
	if t.Failed() {
		t.Logf("it says:\n%s", &out)
	}
}

// Nothing is made up where all is well.
func TestSummaryOfSuccess(t *testing.T) {
	var out strings.Builder
	r := newRun(nil, &out)
	r.read(strings.NewReader(`{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0.1}
{"Action":"pass","Package":"m/a","Elapsed":1.5}
`), ".", "m")
	r.summarize()
	if want := "\n1 tests of 1 packages passed\n"; !strings.HasSuffix(out.String(), want) || len(r.failures) > 0 {
		t.Errorf("%q, %q", out.String(), r.failures)
	}
}

func TestPackagesOf(t *testing.T) {
	t.Chdir("../../..")
	for _, c := range []struct {
		args string
		want map[string]string
	}{
		{"", map[string]string{".": "./...", "workshop/bench/libraries": "./...", "deploy": "./...", "workshop/e2e": "./..."}},
		{"-run X", map[string]string{".": "./...", "workshop/bench/libraries": "./...", "deploy": "./...", "workshop/e2e": "./..."}},
		{"-race ./internal/server ./workshop/e2e ./workshop/e2e/outages", map[string]string{".": "./internal/server", "workshop/e2e": "./ ./outages"}},
		{"./...", map[string]string{".": "./..."}},
		{"./deploy/...", map[string]string{"deploy": "./..."}},
		{"./workshop/bench ./workshop/bench/libraries", map[string]string{".": "./workshop/bench", "workshop/bench/libraries": "./"}},
	} {
		for _, module := range modules {
			if got := strings.Join(packagesOf(module, strings.Fields(c.args)), " "); got != c.want[module] {
				t.Errorf("%q: packages of %s are %q, want %q", c.args, module, got, c.want[module])
			}
		}
	}
}

// Each package has its place, with the race detector or without it; a test that leaves something out with the detector, or does not
// run with it, also runs without it.
func TestPasses(t *testing.T) {
	if !raceDetectorWorks() {
		t.Skip("NOT RUN without a C compiler: workshop/scripts/install-cc gets it")
	}
	t.Chdir("../../..")
	for module, paths := range map[string]map[string]bool{
		".":                        {"./internal/server": true, "./internal/authoring/simulate": true, "./internal/authoring/simulate/report": false, "./internal/descriptor": false, "./workshop/scripts/suite": false, "./internal": false},
		"workshop/e2e":             {"./.": true, "./outages": true, "./browser": false},
		"deploy":                   {"./.": false},
		"workshop/bench/libraries": {"./.": false},
	} {
		all, err := passes(module)
		if err != nil {
			t.Fatal(err)
		}
		for path, race := range paths {
			if !slices.ContainsFunc(all, func(p pass) bool { return p.race == race && slices.Contains(p.packages, path) }) {
				t.Errorf("%s of %s does not run with the race detector %t", path, module, race)
			}
		}
	}
	tests, err := plainTests("internal/limiter")
	if err != nil || !slices.Contains(tests, "TestDecideDoesNotAllocate") || slices.Contains(tests, "TestConcurrentSwap") {
		t.Errorf("%v, %v", tests, err)
	}
}

// Whoever starts all tests sees first what is installed, and that there is a shorter way.
func TestPlanIsSaidFirst(t *testing.T) {
	said := plan()
	for _, part := range append([]string{"make quick", ".tools"}, parts...) {
		if !strings.Contains(said, part) {
			t.Errorf("no %s in %q", part, said)
		}
	}
}
