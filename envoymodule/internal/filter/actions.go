package filter

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// compileAction compiles an action. It adds the same entries as the action of Envoy's rate limit filter.
func compileAction(of *routev3.RateLimit_Action) (action, error) {
	switch a := of.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_SourceCluster_:
		return func(b *building) bool { return b.add("source_cluster", b.sourceCluster) }, nil
	case *routev3.RateLimit_Action_DestinationCluster_:
		return func(b *building) bool {
			name, known := b.stream.Cluster()
			return known && b.copy("destination_cluster", name)
		}, nil
	case *routev3.RateLimit_Action_RequestHeaders_:
		return requestHeader(a.RequestHeaders), nil
	case *routev3.RateLimit_Action_QueryParameters_:
		return queryParameter(a.QueryParameters), nil
	case *routev3.RateLimit_Action_RemoteAddress_:
		return remoteAddress, nil
	case *routev3.RateLimit_Action_MaskedRemoteAddress_:
		return maskedAddress(a.MaskedRemoteAddress), nil
	case *routev3.RateLimit_Action_RemoteAddressMatch_:
		return addressMatch(a.RemoteAddressMatch)
	case *routev3.RateLimit_Action_GenericKey_:
		value, err := literal(a.GenericKey.GetDescriptorValue())
		key := cmp.Or(a.GenericKey.GetDescriptorKey(), "generic_key")
		return func(b *building) bool { return b.add(key, value) }, err
	case *routev3.RateLimit_Action_HeaderValueMatch_:
		return headerMatch(a.HeaderValueMatch)
	case *routev3.RateLimit_Action_QueryParameterValueMatch_:
		return queryMatch(a.QueryParameterValueMatch)
	case *routev3.RateLimit_Action_Metadata:
		m := a.Metadata
		return metadata(Source(m.GetSource()), m.GetMetadataKey(), m.GetDescriptorKey(), m.GetDefaultValue(),
			m.GetSkipIfAbsent())
	default:
		return nil, notSupported(of, "action_specifier")
	}
}

// notSupported returns the error about the field of a oneof that is set.
func notSupported(m proto.Message, oneof protoreflect.Name) error {
	r := m.ProtoReflect()
	if field := r.WhichOneof(r.Descriptor().Oneofs().ByName(oneof)); field != nil {
		return fmt.Errorf("%s is not supported", field.Name())
	}
	return fmt.Errorf("%s is not set", oneof)
}

// literal returns a value that a runtime flag of Envoy, which a module cannot see, may turn into a format.
func literal(value string) (string, error) {
	if strings.Contains(value, "%") {
		return "", fmt.Errorf("descriptor_value %q: %% is not supported, because a module cannot fill in formats", value)
	}
	return value, nil
}

func requestHeader(a *routev3.RateLimit_Action_RequestHeaders) action {
	name, key, absent := strings.ToLower(a.GetHeaderName()), a.GetDescriptorKey(), a.GetSkipIfAbsent()
	return func(b *building) bool {
		value, n := b.stream.Header(name, 0)
		if n == 0 {
			return absent
		}
		return b.copy(key, value)
	}
}

func queryParameter(a *routev3.RateLimit_Action_QueryParameters) action {
	name, key, absent := a.GetQueryParameterName(), a.GetDescriptorKey(), a.GetSkipIfAbsent()
	return func(b *building) bool {
		path, _ := b.stream.Header(":path", 0)
		value, found := parameter(path, name)
		if !found {
			return absent
		}
		return b.copy(key, value)
	}
}

func remoteAddress(b *building) bool {
	address, ok := b.remoteAddress()
	if !ok {
		return false
	}
	from := len(b.text)
	b.text = address.AppendTo(b.text)
	return b.copied("remote_address", from)
}

func maskedAddress(a *routev3.RateLimit_Action_MaskedRemoteAddress) action {
	bits := func(n *wrapperspb.UInt32Value, all int) int {
		if n == nil {
			return all
		}
		return int(n.GetValue())
	}
	v4, v6 := bits(a.GetV4PrefixMaskLen(), 32), bits(a.GetV6PrefixMaskLen(), 128)
	return func(b *building) bool {
		address, ok := b.remoteAddress()
		if !ok {
			return false
		}
		n := v6
		if address.Is4() {
			n = v4
		}
		from := len(b.text)
		b.text = netip.PrefixFrom(address, n).Masked().AppendTo(b.text)
		return b.copied("masked_remote_address", from)
	}
}

func addressMatch(a *routev3.RateLimit_Action_RemoteAddressMatch) (action, error) {
	value, err := literal(a.GetDescriptorValue())
	var networks []netip.Prefix
	for _, r := range a.GetAddressMatcher().GetRanges() {
		address, bad := netip.ParseAddr(r.GetAddressPrefix())
		bits := min(int(r.GetPrefixLen().GetValue()), address.BitLen()) // more are the whole address, as for Envoy
		networks = append(networks, netip.PrefixFrom(address, bits))
		err = errors.Join(err, bad)
	}
	key, invert := cmp.Or(a.GetDescriptorKey(), "remote_address_match"), a.GetAddressMatcher().GetInvertMatch()
	return func(b *building) bool {
		address, ok := b.remoteAddress()
		if !ok {
			return false
		}
		inside := false
		for _, n := range networks {
			inside = inside || n.Contains(address)
		}
		return inside != invert && b.add(key, value)
	}, err
}

func headerMatch(a *routev3.RateLimit_Action_HeaderValueMatch) (action, error) {
	value, err := literal(a.GetDescriptorValue())
	matches, bad := headerMatchers(a.GetHeaders())
	key, expected := cmp.Or(a.GetDescriptorKey(), "header_match"), a.GetExpectMatch() == nil ||
		a.GetExpectMatch().GetValue()
	return func(b *building) bool { return matches(b.stream) == expected && b.add(key, value) }, errors.Join(err, bad)
}

func queryMatch(a *routev3.RateLimit_Action_QueryParameterValueMatch) (action, error) {
	value, err := literal(a.GetDescriptorValue())
	matches, bad := queryMatchers(a.GetQueryParameters())
	key, expected := cmp.Or(a.GetDescriptorKey(), "query_match"), a.GetExpectMatch() == nil ||
		a.GetExpectMatch().GetValue()
	return func(b *building) bool { return matches(b.stream) == expected && b.add(key, value) }, errors.Join(err, bad)
}

func metadata(from Source, at *metadatav3.MetadataKey, key, otherwise string, absent bool) (action, error) {
	if len(at.GetPath()) != 1 {
		return nil,
			errors.New("metadata_key with a path of several keys is not supported: a module reads only the first level below " +
				"a namespace")
	}
	if from > RouteMetadata {
		return nil, fmt.Errorf("metadata from source %d is not supported", from)
	}
	space, first := at.GetKey(), at.GetPath()[0].GetKey()
	return func(b *building) bool {
		switch value, _ := b.stream.Metadata(from, space, first); {
		case value != "":
			return b.copy(key, value)
		case otherwise != "":
			return b.add(key, otherwise)
		default:
			return absent
		}
	}, nil
}
