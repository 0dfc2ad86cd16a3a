package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/xds"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
)

// xdsOptions are the settings of rules over xDS, with CONFIG_TYPE=GRPC_XDS_SOTW.
type xdsOptions struct {
	Server       string        `name:"config-grpc-xds-server-url" env:"CONFIG_GRPC_XDS_SERVER_URL" nonempty:"" default:"localhost:18000" help:"The xDS server."`
	NodeID       string        `name:"config-grpc-xds-node-id" env:"CONFIG_GRPC_XDS_NODE_ID" default:"default" help:"Node ID to send."`
	NodeMetadata string        `name:"config-grpc-xds-node-metadata" env:"CONFIG_GRPC_XDS_NODE_METADATA" placeholder:"KEY=VALUE,..." help:"Node metadata to send."`
	Headers      string        `name:"config-grpc-xds-client-additional-headers" env:"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" placeholder:"NAME:VALUE,..." help:"Headers to send."`
	ConnectRetry time.Duration `name:"config-grpc-xds-server-connect-retry-interval" env:"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL" clamp:"0s.." default:"3s" help:"Wait between attempts, plus or minus half."`

	TLS    bool   `name:"config-grpc-xds-server-use-tls" env:"CONFIG_GRPC_XDS_SERVER_USE_TLS" help:"Encrypt the connection."`
	CACert string `name:"config-grpc-xds-server-tls-cacert" env:"CONFIG_GRPC_XDS_SERVER_TLS_CACERT" placeholder:"FILE" help:"Authorities, besides the system's."`
	SAN    string `name:"config-grpc-xds-server-tls-san" env:"CONFIG_GRPC_XDS_SERVER_TLS_SAN" help:"Name in the server's certificate. Unset: the URL's host."`
	Cert   string `name:"config-grpc-xds-client-tls-cert" env:"CONFIG_GRPC_XDS_CLIENT_TLS_CERT" placeholder:"FILE" help:"Client certificate."`
	Key    string `name:"config-grpc-xds-client-tls-key" env:"CONFIG_GRPC_XDS_CLIENT_TLS_KEY" placeholder:"FILE" help:"Private key."`

	BackoffInitial time.Duration `name:"xds-client-backoff-initial-interval" env:"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" nonpositive:"100ms" clamp:"1ms.." default:"10s" help:"First wait before reconnecting. Each failure makes it 1.5 times as long."`
	BackoffMax     time.Duration `name:"xds-client-backoff-max-interval" env:"XDS_CLIENT_BACKOFF_MAX_INTERVAL" nonpositive:"10s" clamp:"1ms.." default:"60s" help:"Longest wait."`
	BackoffFactor  float64       `name:"xds-client-backoff-random-factor" env:"XDS_CLIENT_BACKOFF_RANDOM_FACTOR" clamp:"0..1" default:"0.5" help:"How random the waits are, from 0 to 1."`
	BackoffJitter  bool          `name:"xds-client-backoff-jitter" env:"XDS_CLIENT_BACKOFF_JITTER" default:"true" negatable:"" help:"Make the waits random."`
	MaxMessage     int           `name:"xds-client-max-msg-size-in-bytes" env:"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" clamp:"0.." placeholder:"BYTES" help:"Largest set of rules. Unset: 64 MiB."`
}

// overXDS returns the client that receives rules from an xDS server.
func (s *starting) overXDS() (*xds.Client, error) {
	o := &s.options.XDS
	opts := xds.Options{
		Server:          o.Server,
		NodeID:          o.NodeID,
		MaxMessageBytes: o.MaxMessage,
		ConnectRetry:    o.ConnectRetry,
		Backoff:         xds.Backoff{Initial: o.BackoffInitial, Max: o.BackoffMax, Factor: o.BackoffFactor},
		MergeDomains:    s.options.Rules.Merge,
		Tree:            s.options.Answers.tree(),
		Logger:          s.log,
		Metrics:         prom.With(s.registry),
	}
	if !o.BackoffJitter {
		opts.Backoff.Factor = 0
	}
	var err error
	metadata := s.pairs("CONFIG_GRPC_XDS_NODE_METADATA", o.NodeMetadata, func(part string) bool {
		key, _, ok := strings.Cut(part, "=")
		return ok && strings.TrimSpace(key) != ""
	})
	if opts.NodeMetadata, err = xds.ParseMetadata(metadata); err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_NODE_METADATA: %w", err)
	}
	if opts.Headers, err = xds.ParseHeaders(o.Headers); err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: %w", err)
	}
	if err := s.encryptXDS(&opts); err != nil {
		return nil, err
	}
	client, err := xds.New(opts)
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_SERVER_URL: %w", err) // err repeats the URL only if it has no credentials
	}
	s.log.Info("rules come over xDS", "server", o.Server, "node", o.NodeID, "encrypted", o.TLS)
	return client, nil
}

// encryptXDS sets up TLS for the connection to the server, if it is on.
func (s *starting) encryptXDS(opts *xds.Options) error {
	o := &s.options.XDS
	if !o.TLS {
		if o.CACert != "" || o.SAN != "" || o.Cert != "" || o.Key != "" {
			s.log.Warn("the CONFIG_GRPC_XDS_..._TLS_ files and names have no effect without " +
				"CONFIG_GRPC_XDS_SERVER_USE_TLS=true: rules are received in plain text")
		}
		return nil
	}
	files, err := tlsfiles.Load(tlsfiles.Options{
		Use: "xds", Cert: o.Cert, Key: o.Key, CA: o.CACert, Name: o.SAN, Log: s.log, Metrics: prom.With(s.registry),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", given("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true",
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", o.Cert, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", o.Key,
			"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", o.CACert), err)
	}
	opts.TLS = files.Client
	s.tasks.Add(files.Run)
	return nil
}
