package operator

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	adminconnect "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1/adminv1connect"
)

// The roles that a token or a certificate may have.
const (
	roleRead    = "read"    // sees everything, changes nothing
	roleOperate = "operate" // may do everything
)

// need is a requirement that a request must meet to pass the gate.
type need struct {
	role string

	// named: it is rejected where the port requires neither tokens nor certificates, because the log could not name who
	// did it.
	named bool
}

var (
	toRead    = need{role: roleRead}
	toOperate = need{role: roleOperate, named: true}
)

// needs are the requirements of methods and pages. A path that ends with a slash is for all paths below it; the longest
// one counts. For a page, the row is about GET and HEAD: other methods need the role operate. A method of a service
// that is not here is rejected.
var needs = map[string]need{
	adminconnect.AdminServiceListRuleFilesProcedure: toRead,
	adminconnect.AdminServiceExplainProcedure:       toRead,
	adminconnect.AdminServiceHotKeysProcedure:       toRead,
	adminconnect.AdminServiceListRegionsProcedure:   toRead,

	adminconnect.AdminServiceListSharesProcedure: {role: roleRead, named: true}, // same as Peek

	adminconnect.CounterServicePeekProcedure:  {role: roleRead, named: true}, // it shows a customer's usage
	adminconnect.CounterServiceResetProcedure: toOperate,

	adminconnect.OverrideServiceListProcedure:    toRead,
	adminconnect.OverrideServiceHistoryProcedure: toRead,
	adminconnect.OverrideServiceStatusProcedure:  toRead,
	adminconnect.OverrideServiceSetProcedure:     toOperate,
	adminconnect.OverrideServiceRemoveProcedure:  toOperate,

	adminconnect.UsageServiceListProcedure: {role: roleRead, named: true}, // same as Peek

	adminconnect.FleetServiceListProcedure: toRead,

	"/grpc.reflection.v1.ServerReflection/":      toRead,
	"/grpc.reflection.v1alpha.ServerReflection/": toRead,

	"/":              toRead,
	"/rlconfig":      toRead,
	"/stats":         toRead,
	"/regions":       toRead,
	"/debug/hotkeys": toRead,
	"/loglevel":      toRead,
	"/debug/pprof/":  {role: roleOperate}, // a profile costs the process time
}

// needOf returns the requirement of a request, or false for a method that no service has.
func needOf(r *http.Request) (need, bool) {
	path := r.URL.Path
	if n, ok := needs[path]; ok && (isService(path) || isRead(r)) {
		return n, true
	}
	for end := strings.LastIndexByte(path, '/'); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if n, ok := needs[path[:end+1]]; ok {
			return n, true
		}
	}
	switch {
	case isService(path):
		return need{}, false
	case isRead(r), path == findPath: // findPath itself hides data from an operator without a name
		return toRead, true
	default:
		return need{role: roleOperate}, true // such as PUT /loglevel, which needs no name in the log
	}
}

func isRead(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead
}

// allows reports whether a role is enough.
func (n need) allows(role string) bool { return role == roleOperate || role == n.role }

// roleOf is the role of the operator behind a request that passed the gate. An operator without a name changes nothing.
func (a *Access) roleOf(ctx context.Context) string {
	if a.Tokens == nil && !a.ClientCerts {
		return roleRead
	}
	return actorOf(ctx).role
}

// CertificateName gives a role, read or operate, to the client certificates that are for a name: a DNS name, an IP
// address or a URI.
type CertificateName struct{ Role, Name string }

// ParseCertificateNames reads items of the form [ROLE] NAME. The default role is operate, as in a file of tokens.
func ParseCertificateNames(items []string) ([]CertificateName, error) {
	var names []CertificateName
	for _, item := range items {
		words := strings.Fields(item)
		isRole := len(words) > 0 && (words[0] == roleRead || words[0] == roleOperate)
		switch {
		case len(words) == 0:
			return nil, errors.New("an item is empty: write [ROLE] NAME")
		case len(words) == 1 && isRole:
			return nil, fmt.Errorf("%q has no name: write [ROLE] NAME", item)
		case len(words) == 1:
			names = append(names, CertificateName{roleOperate, words[0]})
		case len(words) == 2 && isRole:
			names = append(names, CertificateName{words[0], words[1]})
		case len(words) == 2:
			return nil, fmt.Errorf("%q has an unknown role: write read or operate before the name", item)
		default:
			return nil, fmt.Errorf("%q is more than a role and a name: separate names with commas", item)
		}
	}
	return names, nil
}

// certificateRole is the role of a client certificate. It is empty if the certificate is for none of the names.
func (a *Access) certificateRole(leaf *x509.Certificate) (role string) {
	if len(a.Names) == 0 {
		return roleOperate
	}
	for _, n := range a.Names {
		if role != roleOperate && tlsfiles.Named(leaf, n.Name) == nil {
			role = n.Role
		}
	}
	return role
}
