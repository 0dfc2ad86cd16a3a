package e2e

import (
	"slices"
	"testing"
)

func TestSlice(t *testing.T) {
	up := startUpstream(t)
	s := startService(t, "ratelimitd", rules(t, `
domain: e2e
descriptors:
  - {key: generic_key, value: static, rate_limit: {unit: day, requests_per_unit: 2}}`))
	e := startEnvoy(t, bootstrap{
		Listeners: []listener{{Name: "main", Routes: `
- match: {prefix: /static}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_value: static}}]`}},
		Clusters: []cluster{upstreamCluster(up), rls(s)},
	})
	if got := e.codes(t, 3, "main", "/static"); !slices.Equal(got, []int{200, 200, 429}) {
		t.Errorf("got %v", got)
	}
	t.Log(e.verdicts(t, "main"), answered(t, s))
}
