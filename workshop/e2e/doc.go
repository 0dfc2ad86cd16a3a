// Package e2e tests ratelimitd as its users run it: through a real Envoy. Its tests start redis-server, ratelimitd as
// processes, a small upstream and Envoy. They send HTTP and gRPC through Envoy, and check the clients' answers, Envoy's
// own statistics, and ours. docs/contributing/e2e.md lists the scenarios.
//
// TestMain finds Envoy and builds the service once. Scenarios that can share an Envoy run together; each of the others
// starts its own.
//
// Without an Envoy (workshop/scripts/install-envoy, or E2E_ENVOY) the tests are skipped, or fail if CI is set. Tests
// that take a minute need RATELIMITD_SOAK=1.
//
// Nothing is imitated. From the service's module, the tests only link the helpers that start Redis and the service, and
// that make certificates.
package e2e
