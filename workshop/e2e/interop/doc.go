// Package interop lets real gRPC clients of several languages call the service on its built-in HTTP/2 server: the same
// steps for all, and the same results expected. Each client is a small program in a separate directory, whose
// manifest pins its libraries. Its last step is a load over a rolling restart, of which no call may be lost.
//
// The client in Go always runs. `workshop/scripts/test-interop` installs the libraries of the other clients into .tools
// and runs these clients too, as far as their languages are installed. It names the clients that it leaves out.
package interop
