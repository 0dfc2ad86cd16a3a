package server

import (
	"fmt"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server/reservation"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// kuadrantService is the service that Kuadrant's gateway calls: it checks a limit and reports the used hits later, or
// it reserves and commits later.
const (
	kuadrantPackage = "kuadrant.service.ratelimit.v1"
	kuadrantService = kuadrantPackage + ".RateLimitService"
	kuadrantFile    = "kuadrant/service/ratelimit/v1/ratelimit.proto"
)

// kuadrant implements that service. Some messages are those of Envoy's service.
type kuadrant struct{ reservations }

func describeKuadrant(to *transport.Services, d *deciding, ids *reservation.Signer) []*method {
	describeKuadrantFile()
	s := &kuadrant{reservations{ids, d.bounds}}
	add := func(name string, decode func(*rateLimitCall, []byte, string) error,
		encode func(*rateLimitCall, []byte) ([]byte, error)) *method {
		m := newMethod(d, "/"+kuadrantService+"/"+name)
		m.decode, m.encode = decode, encode
		return m
	}
	methods := []*method{
		add("CheckRateLimit", s.readCheck, nil),
		add("Report", s.readReport, appendReported),
		add("Reserve", s.readReserve, s.appendReserved),
		add("Commit", s.readCommit, s.appendCommitted),
	}
	describeMethods(to, kuadrantService, kuadrantFile, methods...)
	return methods
}

// anyDescriptor adds an empty descriptor, which matches no rule, to a request without descriptors. Kuadrant's gateway
// sends the descriptors whose conditions hold, and there may be none.
func anyDescriptor(req *limiter.Request) {
	if len(req.Descriptors) == 0 {
		addDescriptor(req)
	}
}

// readCheck decodes a request that asks whether one more hit would pass, without adding it.
func (s *kuadrant) readCheck(c *rateLimitCall, data []byte, text string) error {
	if err := decodeText(data, text, &c.request, s.bounds); err != nil {
		return err
	}
	c.request.Purpose, c.request.Hits = limiter.Look, 1
	anyDescriptor(&c.request)
	return nil
}

// readReport decodes a request whose hits have already passed.
func (s *kuadrant) readReport(c *rateLimitCall, data []byte, text string) error {
	if err := decodeText(data, text, &c.request, s.bounds); err != nil {
		return err
	}
	c.charge()
	return nil
}

// charge counts the hits of a call even if they do not fit.
func (c *rateLimitCall) charge() {
	anyDescriptor(&c.request)
	c.request.Purpose = limiter.Settled
	h := c.begin(limiter.Commit)
	h.ID, h.Final, h.ChargeUnknown = limiter.ReservationID(reservation.NewNonce()), true, true
}

func appendReported(_ *rateLimitCall, b []byte) ([]byte, error) {
	return appendUint(b, 1, uint64(limiter.OK)), nil
}

// kuadrant decodes the common fields of ReserveRequest and CommitRequest, domain and descriptors. It calls other for
// the rest.
func (d *decoder) kuadrant(req *limiter.Request, message string,
	other func(protowire.Number, protowire.Type) bool) error {
	req.Domain, req.Hits, req.Purpose, req.Reservation, req.Descriptors = "", 0, limiter.Count, nil, req.Descriptors[:0]
	d.end = len(d.data)
	for d.pos < d.end {
		num, typ, ok := d.tag()
		if !ok {
			return malformed(message)
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			if req.Domain, ok = d.str(); d.tooLong {
				return tooMuch("domain", "more than %d bytes", d.bounds.MaxTextBytes)
			}
		case num == 2 && typ == protowire.BytesType:
			var err error
			if ok, err = d.oneDescriptor(req); err != nil {
				return err
			}
		default:
			ok = other(num, typ)
		}
		if !ok {
			return malformed(message)
		}
	}
	anyDescriptor(req)
	return nil
}

// setHits sets the hits of all descriptors.
func setHits(req *limiter.Request, hits uint64) {
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		d.Hits, d.HasHits, d.Refund = hits, true, false
	}
}

func (s *kuadrant) readReserve(c *rateLimitCall, data []byte, text string) error {
	var amount uint64
	var ttl time.Duration
	d := decoder{data: data, text: text, bounds: s.bounds}
	err := d.kuadrant(&c.request, kuadrantPackage+".ReserveRequest",
		func(num protowire.Number, typ protowire.Type) (ok bool) {
			switch {
			case num == 3 && typ == protowire.VarintType:
				amount, ok = d.varint()
			case num == 4 && typ == protowire.BytesType:
				ttl, ok = d.duration(ttl)
			default:
				ok = d.skip(num, typ)
			}
			return ok
		})
	if err != nil {
		return err
	}
	setHits(&c.request, amount)
	if amount == 0 {
		return nil // a check: its commit has no id, and charges the used hits
	}
	s.beginReserve(c).TTL = max(ttl, 0)
	return checkIDSize(&c.request)
}

func (s *kuadrant) appendReserved(c *rateLimitCall, b []byte) ([]byte, error) {
	d := &c.decision
	b = appendUint(b, 1, uint64(d.Code))
	if c.request.Reservation == nil || !d.Reserved() {
		return b, nil
	}
	id, err := newID(s.ids, c)
	if err != nil {
		return nil, err
	}
	return appendString(b, 2, id), nil
}

// readCommit decodes the hits that a request has used. Without a reservation they are charged anyway. An unknown
// reservation was committed before, or it expired and was charged according to the rule.
func (s *kuadrant) readCommit(c *rateLimitCall, data []byte, text string) error {
	var id string
	var actual uint64
	d := decoder{data: data, text: text, bounds: s.bounds}
	err := d.kuadrant(&c.request, kuadrantPackage+".CommitRequest",
		func(num protowire.Number, typ protowire.Type) (ok bool) {
			switch {
			case num == 3 && typ == protowire.BytesType:
				id, ok = d.id()
			case num == 4 && typ == protowire.VarintType:
				actual, ok = d.varint()
			default:
				ok = d.skip(num, typ)
			}
			return ok
		})
	if err != nil {
		return err
	}
	if id != "" {
		domain, sent := c.request.Domain, c.request.Descriptors
		c.request.Descriptors = nil
		err := s.open(c, id, limiter.Commit)
		switch {
		case err == nil && c.request.Domain == domain:
			c.reservation.Final = true
			setHits(&c.request, actual)
			return nil
		case err == reservation.ErrNoKey: //nolint:errorlint // it is not wrapped
			return err
		}
		c.request.Domain, c.request.Descriptors = domain, sent
	}
	setHits(&c.request, actual)
	c.charge()
	return nil
}

func (s *kuadrant) appendCommitted(c *rateLimitCall, b []byte) ([]byte, error) {
	if c.reservation.ChargeUnknown || !c.decision.ReservationKnown() {
		return b, nil
	}
	return appendUint(b, 1, 1), nil
}

// describeKuadrantFile adds the file of the service to reflection. Kuadrant's gateway loads the messages of a service
// by reflection.
var describeKuadrantFile = sync.OnceFunc(func() {
	const (
		request  = ".envoy.service.ratelimit.v3.RateLimitRequest"
		response = ".envoy.service.ratelimit.v3.RateLimitResponse"
		own      = "." + kuadrantPackage + "."

		text    = descriptorpb.FieldDescriptorProto_TYPE_STRING
		number  = descriptorpb.FieldDescriptorProto_TYPE_UINT64
		yes     = descriptorpb.FieldDescriptorProto_TYPE_BOOL
		message = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		enum    = descriptorpb.FieldDescriptorProto_TYPE_ENUM
	)
	field := func(name string, num int32, kind descriptorpb.FieldDescriptorProto_Type,
		of string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &num, Type: &kind,
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
		if of != "" {
			f.TypeName = &of
		}
		return f
	}
	messageOf := func(name string, fields ...*descriptorpb.FieldDescriptorProto) *descriptorpb.DescriptorProto {
		return &descriptorpb.DescriptorProto{Name: &name, Field: fields}
	}
	descriptors := field("descriptors", 2, message, ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor")
	descriptors.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	call := func(name, in, out string) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{Name: &name, InputType: &in, OutputType: &out}
	}
	envoy := ratelimitv3.File_envoy_service_ratelimit_v3_rls_proto
	entries := (&ratelimitv3.RateLimitRequest{}).ProtoReflect().Descriptor().Fields().ByName("descriptors")
	common := entries.Message().ParentFile()
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String(kuadrantFile), Package: proto.String(kuadrantPackage), Syntax: proto.String("proto3"),
		Dependency: []string{envoy.Path(), common.Path(), durationpb.File_google_protobuf_duration_proto.Path()},
		MessageType: []*descriptorpb.DescriptorProto{
			messageOf("ReserveRequest", field("domain", 1, text, ""), descriptors, field("amount", 3, number, ""),
				field("ttl", 4, message, ".google.protobuf.Duration")),
			messageOf("ReserveResponse", field("code", 1, enum, response+".Code"), field("reservation_id", 2, text, "")),
			messageOf("CommitRequest", field("domain", 1, text, ""), descriptors, field("reservation_id", 3, text, ""),
				field("actual_amount", 4, number, "")),
			messageOf("CommitResponse", field("reservation_released", 1, yes, "")),
		},
		Service: []*descriptorpb.ServiceDescriptorProto{{
			Name: proto.String("RateLimitService"),
			Method: []*descriptorpb.MethodDescriptorProto{
				call("CheckRateLimit", request, response), call("Report", request, response),
				call("Reserve", own+"ReserveRequest", own+"ReserveResponse"),
				call("Commit", own+"CommitRequest", own+"CommitResponse"),
			},
		}},
	}
	raw, err := proto.Marshal(file)
	if err != nil {
		panic(fmt.Sprintf("the description of %s: %v", kuadrantService, err))
	}
	describeFile(kuadrantFile, raw)
})
