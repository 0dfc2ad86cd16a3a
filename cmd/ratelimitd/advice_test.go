package main

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Settings for another kind of Redis give one message, which names the setting to change. No message advises other
// rights in Redis.
func TestSettingsForAnotherKindOfRedis(t *testing.T) {
	r := redistest.Start(t)
	for name, c := range map[string]struct {
		env    map[string]string
		advice string
	}{
		"a cluster":  {map[string]string{"REDIS_TYPE": "cluster"}, "set REDIS_TYPE=SINGLE"},
		"a Sentinel": {map[string]string{"REDIS_TYPE": "sentinel", "REDIS_URL": "mymaster," + r.Addr}, "set REDIS_TYPE=SINGLE"},
		"a password": {map[string]string{"REDIS_AUTH": "secret"}, "unset REDIS_AUTH"},
		"a second one": {map[string]string{
			"REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": r.Addr, "REDIS_PERSECOND_AUTH": "secret",
		}, "unset REDIS_PERSECOND_AUTH"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"REDIS_URL": r.Addr}
			for k, v := range c.env {
				env[k] = v
			}
			p := startProcess(t, env, "--rules", rulesOf(t, fiveADay))
			line := p.Log.Wait(t, "Redis cannot be used with these settings: on_error decides")
			if advice, _ := line["advice"].(string); !strings.Contains(advice, c.advice) {
				t.Errorf("%v", line)
			}
			if log := p.Log.String(); strings.Contains(log, "grant") || strings.Contains(log, "rights") || strings.Contains(log, "secret") {
				t.Error(log)
			}
		})
	}
}
