// Package e2e drives ratelimitd as its users do: through a real Envoy. Its tests start redis-server, ratelimitd as
// processes, a small upstream and Envoy, send HTTP and gRPC through Envoy, and look at what a client sees, at Envoy's own
// statistics and at ours. docs/e2e.md lists the scenarios and what each proves.
//
// main_test.go finds Envoy and builds the service, once for all tests. The parts are a file each: envoy_test.go the
// process and its statistics, bootstrap_test.go and testdata/envoy.yaml what it is told, service_test.go ratelimitd,
// upstream_test.go what is protected, client_test.go who calls, load_test.go many who call. The other files hold
// scenarios, those that can share one Envoy together.
//
// Without an Envoy (scripts/install-envoy, or E2E_ENVOY) the tests are skipped, and fail where CI is set. What runs
// for a minute needs RATELIMITD_SOAK=1.
//
// Nothing is faked here, and nothing of the module is linked in but what starts Redis and makes certificates.
package e2e
