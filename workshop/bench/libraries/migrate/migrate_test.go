package migrate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func TestFromRate(t *testing.T) {
	for name, do := range map[string]job{"x/time/rate": rateLimiter, "ratelimitd": keyedInsteadOfRate} {
		if got, err := do(t.Context()); err != nil || !slices.Equal(got, []bool{true, true, false}) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	v := visitors{all: map[string]*visitor{}}
	if !v.allow("ann") {
		t.Error("the first request is denied")
	}
	v.all["ann"].seen = time.Time{}
	if v.forget(); len(v.all) > 0 {
		t.Error("nobody was forgotten")
	}
}

func TestFromUlule(t *testing.T) {
	type way func(context.Context, string, http.Handler) ([]bool, http.Handler, error)
	for name, do := range map[string]way{"ulule": ulule, "ratelimitd": keyedInsteadOfUlule} {
		passed, handler, err := do(t.Context(), "ann", http.NewServeMux())
		if err != nil || !slices.Equal(passed, []bool{true, true, false, true, false}) {
			t.Errorf("%s: %v, %v", name, passed, err)
		}
		for _, want := range []int{404, 404, 429} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
			if w.Code != want {
				t.Errorf("%s: %d, not %d", name, w.Code, want)
			}
		}
	}
}

func TestFromRedisRate(t *testing.T) {
	server := redistest.Start(t)
	for name, do := range map[string]func(context.Context, *redis.Client, string) ([]bool, error){
		"redis_rate": redisRate, "ratelimitd": keyedInsteadOfRedisRate,
	} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		defer func() { _ = client.Close() }()
		if got, err := do(t.Context(), client, name); err != nil || !slices.Equal(got, []bool{true, false, true, true}) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// The code on the page is code of this package.
func TestPageHasTheLines(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/do/from-go-libraries.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	compared, inBlock := 0, false
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		var parts []string
		switch {
		case strings.HasPrefix(line, "```"):
			inBlock = !inBlock
		case inBlock:
			parts = []string{line}
		case strings.HasPrefix(line, "|"):
			for i, part := range strings.Split(line, "`") {
				if i%2 == 1 {
					parts = append(parts, part)
				}
			}
		}
		for _, part := range parts {
			compared++
			if !strings.Contains(code.String(), part) {
				t.Errorf("no file has the code of the page: %s", part)
			}
		}
	}
	if compared < 30 {
		t.Errorf("the page has %d pieces of code", compared)
	}
}
