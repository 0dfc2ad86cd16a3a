package e2e

import (
	"fmt"
	"io"
	"net/http"
	"testing"
)

// response is an answer, as a client gets it.
type response struct {
	code   int
	header http.Header
	body   string
}

// get sends a request to a listener of Envoy. headers are name and value pairs.
func (e *envoy) get(t *testing.T, listener, path string, headers ...string) response {
	t.Helper()
	r, err := e.try(t, listener, path, headers...)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return r
}

func (e *envoy) try(t *testing.T, listener, path string, headers ...string) (response, error) {
	t.Helper()
	address, known := e.ports[listener]
	if !known {
		return response{}, fmt.Errorf("there is no listener %s", listener)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return response{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return response{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return response{res.StatusCode, res.Header, string(body)}, err
}

// codes sends the same request n times, one after the other, and returns the status codes.
func (e *envoy) codes(t *testing.T, n int, listener, path string, headers ...string) []int {
	t.Helper()
	var all []int
	for range n {
		all = append(all, e.get(t, listener, path, headers...).code)
	}
	return all
}
