//go:build linux

package containers

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// docker is a daemon.
type docker struct {
	socket, directory string
}

func (d *docker) request(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", d.socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return resp, nil
}

// try sends a request and decodes the answer into to, unless that is nil.
func (d *docker) try(method, path string, body, to any) error {
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		sent = bytes.NewReader(b)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := d.request(ctx, method, path, sent)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if to == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	return json.NewDecoder(resp.Body).Decode(to)
}

func (d *docker) do(t *testing.T, method, path string, body, to any) {
	t.Helper()
	if err := d.try(method, path, body, to); err != nil {
		t.Fatal(err)
	}
}

// image imports a tar file as an image. The changes are lines of a Dockerfile.
func (d *docker) image(t *testing.T, name, file string, changes ...string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	repository, tag, _ := strings.Cut(name, ":")
	query := url.Values{"fromSrc": {"-"}, "repo": {repository}, "tag": {tag}, "changes": changes}
	resp, err := d.request(t.Context(), "POST", "/images/create?"+query.Encode(), f)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || strings.Contains(string(text), `"error"`) {
		t.Fatalf("import %s: %v\n%s", name, err, text)
	}
}

// container is the part of Docker's answer that the tests read.
type container struct {
	ID, Image string
	Name      string
	State     struct {
		Pid    int
		Status string
		Health struct{ Status string }
	}
	Mounts     []struct{ Type, Name, Destination string }
	HostConfig struct {
		ReadonlyRootfs bool
		PortBindings   map[string][]struct{ HostIP string }
	}
	NetworkSettings struct{ IPAddress string }
}

func (d *docker) inspect(t *testing.T, id string) (c container) {
	t.Helper()
	d.do(t, "GET", "/containers/"+id+"/json", nil, &c)
	return c
}

// of lists the containers of a service of docker-compose.yml.
func (d *docker) of(t *testing.T, service string) (all []container) {
	t.Helper()
	var found []struct{ ID string }
	filters := fmt.Sprintf(`{"label":["com.docker.compose.service=%s"]}`, service)
	d.do(t, "GET", "/containers/json?all=1&filters="+url.QueryEscape(filters), nil, &found)
	for _, f := range found {
		all = append(all, d.inspect(t, f.ID))
	}
	return all
}

// logs returns the output of a container.
func (d *docker) logs(t *testing.T, id string) string {
	t.Helper()
	resp, err := d.request(t.Context(), "GET", "/containers/"+id+"/logs?stdout=1&stderr=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var all strings.Builder
	for header := [8]byte{}; ; { // before each part: the stream, three zeros, the length
		if _, err := io.ReadFull(resp.Body, header[:]); errors.Is(err, io.EOF) {
			return all.String()
		} else if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(&all, resp.Body, int64(binary.BigEndian.Uint32(header[4:]))); err != nil {
			t.Fatal(err)
		}
	}
}

// run starts a container of our own image that is not of docker-compose.yml.
func (d *docker) run(t *testing.T, env []string, host map[string]any) container {
	t.Helper()
	var made struct{ ID string }
	d.do(t, "POST", "/containers/create", map[string]any{"Image": "ratelimitd", "Cmd": []string{"--rules", "config/domains"}, "Env": env, "HostConfig": host}, &made)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the container with %q said:\n%s", env, d.logs(t, made.ID))
		}
		d.do(t, "DELETE", "/containers/"+made.ID+"?force=1", nil, nil)
	})
	d.do(t, "POST", "/containers/"+made.ID+"/start", nil, nil)
	return d.inspect(t, made.ID)
}

// compose runs docker-compose in a directory and returns its output.
func (d *docker) compose(t *testing.T, directory string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute) // the image is compiled
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(d.directory, "docker-compose"), append([]string{"--progress", "plain"}, args...)...)
	cmd.Dir = directory
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+d.socket, "DOCKER_CONFIG="+d.directory, "HOME="+d.directory, "COMPOSE_PROJECT_NAME=ratelimitd")
	cmd.WaitDelay = 10 * time.Second
	before := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("docker-compose %s: %.1f s", strings.Join(args, " "), time.Since(before).Seconds())
	if err != nil {
		t.Fatalf("docker-compose %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// lockedBuffer may be written and read at the same time.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// last returns the last lines.
func (l *lockedBuffer) last(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.SplitAfter(strings.TrimSpace(l.b.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
