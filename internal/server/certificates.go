package server

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// verifying counts and logs client certificates that a handshake rejects. The client gets only an alert, and retries.
type verifying struct {
	credentials.TransportCredentials

	log      *slog.Logger
	some     logging.Sampler
	rejected prometheus.Counter
}

// newVerifying wraps credentials. It returns nil for nil.
func newVerifying(creds credentials.TransportCredentials, log *slog.Logger,
	registry prometheus.Registerer) (credentials.TransportCredentials, error) {
	if creds == nil {
		return nil, nil
	}
	v := &verifying{TransportCredentials: creds, log: log, some: logging.Sampler{PerSecond: 1},
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ratelimitd_tls_client_certificates_rejected_total",
			Help: "gRPC connections whose client certificate was rejected.",
		})}
	if registry == nil {
		return v, nil
	}
	return v, registry.Register(v.rejected)
}

// ServerHandshake implements credentials.TransportCredentials.
func (v *verifying) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := v.TransportCredentials.ServerHandshake(raw)
	if why, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		v.rejected.Inc()
		if v.some.Pick(time.Now()) {
			subject := ""
			if len(why.UnverifiedCertificates) > 0 {
				subject = logging.Shorten(why.UnverifiedCertificates[0].Subject.String())
			}
			v.log.Warn("a client's certificate is rejected", "peer", raw.RemoteAddr().String(), "subject", subject,
				"because", logging.Shorten(why.Err.Error()), "not_logged", v.some.Missed())
		}
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (v *verifying) Clone() credentials.TransportCredentials { return v }
