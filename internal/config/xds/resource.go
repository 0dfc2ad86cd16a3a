package xds

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// typeURL is the type of the resources that the client subscribes to.
const typeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// extensions is the key of a descriptor's metadata that holds the keys of the rule language which the protocol lacks.
// Below it, another key holds the keys of the whole domain.
const (
	extensions       = "ratelimitd"
	domainExtensions = "domain"
)

// maxDomainKeys is how many different keys and values of the whole domain are collected. No valid domain has
// as many, so the reader of rule files rejects them in any case, and more of them would only repeat its error.
const maxDomainKeys = 100

// sum is a hash of content.
type sum = [sha256.Size]byte

// sumOf hashes a set. It ignores the order of resources, because servers change it.
func sumOf(set []*anypb.Any) sum {
	sums := make([]sum, len(set))
	for i, x := range set {
		h := sha256.New()
		fmt.Fprintf(h, "%d %s", len(x.GetTypeUrl()), x.GetTypeUrl())
		_, _ = h.Write(x.GetValue()) // it never fails
		h.Sum(sums[i][:0])
	}
	slices.SortFunc(sums, func(a, b sum) int { return bytes.Compare(a[:], b[:]) })
	h := sha256.New()
	for i := range sums {
		_, _ = h.Write(sums[i][:])
	}
	return sum(h.Sum(nil))
}

// resources decodes a set. A part that cannot be decoded becomes a resource with an error.
func resources(set []*anypb.Any) []config.Resource {
	all := make([]config.Resource, len(set))
	for i, x := range set {
		all[i] = resource(x)
		if all[i].Name == "" {
			all[i].Name, all[i].Unnamed = "resource "+strconv.Itoa(i+1), all[i].Err != nil
		}
	}
	return all
}

func resource(x *anypb.Any) config.Resource {
	name := ""
	if wrapper := (&discoveryv3.Resource{}); x.MessageIs(wrapper) {
		if err := x.UnmarshalTo(wrapper); err != nil {
			return config.Resource{Err: fmt.Errorf("cannot be decoded: %w", err)}
		}
		name, x = wrapper.GetName(), wrapper.GetResource()
	}
	message := &ratelimitv3.RateLimitConfig{}
	if !x.MessageIs(message) {
		return config.Resource{Name: name, Err: fmt.Errorf("is a %q: send a %s", x.GetTypeUrl(), typeURL)}
	}
	if err := proto.Unmarshal(x.GetValue(), message); err != nil {
		return config.Resource{Name: name, Err: fmt.Errorf("cannot be decoded: %w", err)}
	}
	for _, candidate := range []string{message.GetName(), message.GetDomain()} {
		if name == "" {
			name = candidate
		}
	}
	r := config.Resource{Name: name, Sum: sha256.Sum256(x.GetValue())}
	r.Later = func() (yamlform.Pairs, error) {
		c, m := converter{}, message
		message = nil // it is large, and used only once
		rules := c.config(m)
		return rules, errors.Join(c.errs...)
	}
	if name == "" { // decoded now, because an unreadable resource without a name affects the others
		r.Rules, r.Err = r.Later()
		r.Later = nil
	}
	return r
}

// converter turns a message into the values of a rule file. Fields that are not set are left out. It validates nothing,
// because the reader of rule files does that.
type converter struct {
	domain yamlform.Pairs // the keys of the whole domain, from all descriptors
	errs   []error
}

func (c *converter) config(m *ratelimitv3.RateLimitConfig) yamlform.Pairs {
	descriptors := c.descriptors(m.GetDescriptors(), "descriptors", 0)
	top := yamlform.Pairs{{Key: "domain", Value: m.GetDomain()}}
	top = append(top, c.domain...)
	return append(top, yamlform.Pair{Key: "descriptors", Value: descriptors})
}

// descriptors converts the list at a path. Lists that the reader rejects as too deep stay empty: the total length of
// all paths of a deep message is the square of its size.
func (c *converter) descriptors(list []*ratelimitv3.RateLimitDescriptor, at string, level int) []any {
	if level >= yamlform.MaxLevels {
		return []any{}
	}
	all := make([]any, len(list))
	for i, d := range list {
		all[i] = c.descriptor(d, at+"["+strconv.Itoa(i)+"]", level)
	}
	return all
}

func (c *converter) descriptor(d *ratelimitv3.RateLimitDescriptor, at string, level int) yamlform.Pairs {
	m := make(yamlform.Pairs, 0, 4)
	add := func(key string, value any, given bool) {
		if given {
			m = append(m, yamlform.Pair{Key: key, Value: value})
		}
	}
	quota, metadata, err := newer(d)
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %w", at, err))
		return nil
	}
	own, extended := c.extensions(metadata, at, level)
	add("key", d.GetKey(), d.GetKey() != "")
	add("value", d.GetValue(), d.GetValue() != "")
	if d.GetRateLimit() != nil {
		limit := rateLimit(d.GetRateLimit())
		extended = slices.DeleteFunc(extended, func(x yamlform.Pair) bool {
			more, is := x.Value.(yamlform.Pairs)
			if x.Key != "rate_limit" || !is {
				return false
			}
			limit = append(limit, below(more, x.Path)...)
			return true
		})
		add("rate_limit", limit, true)
	}
	add("descriptors", c.descriptors(d.GetDescriptors(), at+".descriptors", level+1), len(d.GetDescriptors()) > 0)
	add("shadow_mode", true, d.GetShadowMode())
	add("detailed_metric", true, d.GetDetailedMetric())
	add("quota_mode", true, quota)
	add("metadata", own, len(own) > 0)
	return append(m, extended...)
}

func rateLimit(l *ratelimitv3.RateLimitPolicy) yamlform.Pairs {
	m := make(yamlform.Pairs, 0, 2)
	if l.GetUnit() != ratelimitv3.RateLimitUnit_UNKNOWN {
		m = append(m, yamlform.Pair{Key: "unit", Value: unit(l.GetUnit())})
	}
	if l.GetRequestsPerUnit() != 0 {
		m = append(m, yamlform.Pair{Key: "requests_per_unit", Value: l.GetRequestsPerUnit()})
	}
	if l.GetUnlimited() {
		m = append(m, yamlform.Pair{Key: "unlimited", Value: true})
	}
	if l.GetName() != "" {
		m = append(m, yamlform.Pair{Key: "name", Value: l.GetName()})
	}
	if len(l.GetReplaces()) > 0 {
		names := make([]any, len(l.GetReplaces()))
		for i, r := range l.GetReplaces() {
			names[i] = yamlform.Pairs{{Key: "name", Value: r.GetName()}}
		}
		m = append(m, yamlform.Pair{Key: "replaces", Value: names})
	}
	return m
}

// unit returns the name of a unit. The published Go code lacks the units after DAY; their numbers are the same in all
// of Envoy's protocols.
func unit(u ratelimitv3.RateLimitUnit) string {
	if known := descriptor.Unit(u); u > 0 && u < 256 && known.OnWire() {
		return known.String()
	}
	return strconv.Itoa(int(u))
}

// extensions splits the metadata of a descriptor into the rule's metadata and the keys of the rule language.
func (c *converter) extensions(metadata *structpb.Struct, at string, level int) (own, extended yamlform.Pairs) {
	own = fields(metadata)
	i := slices.IndexFunc(own, func(x yamlform.Pair) bool { return x.Key == extensions })
	if i < 0 {
		return own, nil
	}
	path := at + ".metadata." + extensions
	keys, is := own[i].Value.(yamlform.Pairs)
	if !is {
		c.errs = append(c.errs, fmt.Errorf("%s: must be a map with keys of a descriptor", path))
	}
	own = slices.Delete(own, i, i+1)
	extended = below(keys, path)
	if level > 0 {
		return own, extended // only the first level may have domain keys: the reader of rule files reports others
	}
	extended = slices.DeleteFunc(extended, func(x yamlform.Pair) bool {
		domain, is := x.Value.(yamlform.Pairs)
		if x.Key != domainExtensions || !is {
			return false
		}
		for _, said := range below(domain, x.Path) {
			again := func(x yamlform.Pair) bool { return x.Key == said.Key && reflect.DeepEqual(x.Value, said.Value) }
			if len(c.domain) < maxDomainKeys && !slices.ContainsFunc(c.domain, again) {
				c.domain = append(c.domain, said)
			}
		}
		return true
	})
	return own, extended
}

// below prefixes the items of a map with their real path.
func below(m yamlform.Pairs, path string) yamlform.Pairs {
	for i := range m {
		m[i].Path = path + "." + m[i].Key
	}
	return m
}

// fields converts a struct message to plain values, with its keys in order.
func fields(s *structpb.Struct) yamlform.Pairs {
	m := make(yamlform.Pairs, 0, len(s.GetFields()))
	for _, key := range slices.Sorted(maps.Keys(s.GetFields())) {
		m = append(m, yamlform.Pair{Key: key, Value: plain(s.GetFields()[key])})
	}
	return m
}

func plain(v *structpb.Value) any {
	switch v := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		return v.BoolValue
	case *structpb.Value_NumberValue:
		return v.NumberValue
	case *structpb.Value_StringValue:
		return v.StringValue
	case *structpb.Value_ListValue:
		list := make([]any, len(v.ListValue.GetValues()))
		for i, e := range v.ListValue.GetValues() {
			list[i] = plain(e)
		}
		return list
	case *structpb.Value_StructValue:
		return fields(v.StructValue)
	default:
		return nil
	}
}
