// Package containers runs docker-compose.yml, as it is, on a separate Docker daemon. workshop/scripts/test-compose runs
// it. It has only tests, for Linux.
//
// The daemon needs root. It lives in separate name spaces (network, processes, mounts), with its data in a temporary
// directory: it takes no port of the machine, meets no other daemon, and is gone with the test. No registry is asked:
// the images that docker-compose.yml and the Dockerfile name are made here, of programs of this machine. Grafana is
// left out.
//
//   - namespace_test.go runs the test again in the name spaces, and the daemon
//   - images_test.go makes the images
//   - docker_test.go asks the daemon, and calls compose
//   - compose_test.go tests docker-compose.yml and its services
package containers
