package internal_test

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fileOrder is the order in which a package is read: a declaration is used by the files before its own, and rarely by
// those after it.
var fileOrder = map[string][]string{
	"internal/limiter": {
		// entry points of other packages
		"statistics.go", "totals.go", "resolve.go", "counters.go", "swap.go", "allow.go", "limiter.go",
		// the stages
		"match.go", "apply.go", "charge.go", "judge.go", "metadata.go", "headers.go", "own_headers.go", "report.go",
		// the features
		"on_error.go", "active.go", "quota_mode.go", "request_limit.go", "enforcement.go", "penalty.go", "reservation.go",
		"override.go", "replaces.go", "scale.go", "classes.go", "cost.go", "grouping.go",
		"joining.go", "events.go", "hot.go", "usage.go", "series.go", // counters and observers
		// the nouns
		"work.go", "snapshot.go", "counter.go", "text.go", "metrics.go", "limit_metrics.go", "decision.go", "request.go",
	},
	"internal/server": {
		"server.go", "http.go", "services.go", "handler.go", "listen.go", "health.go", // the ports
		"kuadrant.go", "describe.go", "decisions.go", "reservations.go", "json.go", "quota.go", // the services
		// their messages
		"quota_encode.go", "reservation_answer.go", "reservation_id.go", "reservation_request.go", "quota_decode.go", "json_fault.go",
		"method.go", "batched.go", "call.go", "intake.go", // calls
		// shared by all
		"metrics.go", "decode.go", "encode.go", "options.go", "trace.go", "b3.go", "certificates.go", "ratelimit.go",
	},
}

// arrow is the use of a declaration in another file.
type arrow struct{ from, to string }

// arrows returns the uses of each other's declarations by the files of a package, without tests. The declarations of
// other packages are not loaded, and not needed.
func arrows(t *testing.T, p pkg) []arrow {
	t.Helper()
	var files []*ast.File
	for name, f := range p.files {
		if !isTest(name) {
			files = append(files, f)
		}
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}}
	_, _ = conf.Check(p.dir, p.fset, files, info) // there are errors wherever other packages are used
	fileOf := func(pos token.Pos) string { return filepath.Base(p.fset.Position(pos).Filename) }
	all := make(map[arrow]bool)
	for id, o := range info.Uses {
		if o.Pkg() == nil || o.Pkg().Path() != p.dir || !o.Pos().IsValid() {
			continue
		}
		if a := (arrow{fileOf(id.Pos()), fileOf(o.Pos())}); a.from != a.to {
			all[a] = true
		}
	}
	var sorted []arrow
	for a := range all {
		sorted = append(sorted, a)
	}
	return sorted
}

// nothing imports packages without any declaration.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, path[strings.LastIndexByte(path, '/')+1:])
	p.MarkComplete()
	return p, nil
}

// Of ten arrows between the files of a package at most one points upward.
func TestFileOrder(t *testing.T) {
	all := packages(t)
	for dir, order := range fileOrder {
		i := slices.IndexFunc(all, func(p pkg) bool { return p.dir == dir })
		if i < 0 {
			t.Fatalf("there is no package %s", dir)
		}
		for file := range all[i].files {
			if !isTest(file) && file != "doc.go" && !slices.Contains(order, file) {
				t.Errorf("%s/%s has no place in the order of files", dir, file)
			}
		}
		for _, file := range order {
			if all[i].files[file] == nil {
				t.Errorf("%s/%s is in the order of files, but there is no such file", dir, file)
			}
		}
		found := arrows(t, all[i])
		var upward []string
		for _, a := range found {
			if slices.Index(order, a.from) > slices.Index(order, a.to) {
				upward = append(upward, a.from+" uses "+a.to)
			}
		}
		slices.Sort(upward)
		t.Logf("%s: %d of %d arrows point upward", dir, len(upward), len(found))
		if len(found) < 2*len(order) {
			t.Errorf("%s: found only %d arrows", dir, len(found))
		}
		if 10*len(upward) > len(found) {
			t.Errorf("%s: %d of %d arrows point upward:\n%s", dir, len(upward), len(found), strings.Join(upward, "\n"))
		}
	}
}

// No struct of these packages has more than 15 fields.
func TestStructsAreSmall(t *testing.T) {
	for _, p := range packages(t) {
		for file, f := range p.files {
			if fileOrder[p.dir] == nil || isTest(file) {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.StructType); ok && s.Fields.NumFields() > 15 {
					t.Errorf("%s: a struct with %d fields; group those that belong together", p.fset.Position(s.Pos()), s.Fields.NumFields())
				}
				return true
			})
		}
	}
}
