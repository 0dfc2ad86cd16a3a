package redisconn

import (
	"context"
	"errors"
	"net"
	"strconv"

	goredis "github.com/redis/go-redis/v9"
)

var errSlots = errors.New("the answer to CLUSTER SLOTS is malformed")

// readSlots asks a node for the slots of its cluster. A node without an address for clients has no host there: nil, an
// empty text, or "?". These stand for the host that was asked, but the library fails with nil, and dials the others.
func readSlots(ctx context.Context, cmd *goredis.ClusterSlotsCmd, asked string, send goredis.ProcessHook) error {
	answer := goredis.NewSliceCmd(ctx, cmd.Args()...)
	err := send(ctx, answer)
	if err == nil {
		var slots []goredis.ClusterSlot
		if slots, err = parseSlots(answer.Val(), asked); err == nil {
			cmd.SetVal(slots)
		}
	}
	if err != nil {
		cmd.SetErr(err)
	}
	return err
}

// parseSlots reads [first, last, node, node...] of each range. A node is [host, port, id, [name, value...]].
func parseSlots(ranges []any, asked string) ([]goredis.ClusterSlot, error) {
	slots := make([]goredis.ClusterSlot, 0, len(ranges))
	for _, r := range ranges {
		fields, _ := r.([]any)
		if len(fields) < 2 {
			return nil, errSlots
		}
		first, ok1 := fields[0].(int64)
		last, ok2 := fields[1].(int64)
		if !ok1 || !ok2 {
			return nil, errSlots
		}
		slot := goredis.ClusterSlot{Start: int(first), End: int(last)}
		for _, n := range fields[2:] {
			node, _ := n.([]any)
			if len(node) < 2 {
				return nil, errSlots
			}
			host, _ := node[0].(string)
			port, ok := node[1].(int64)
			if !ok {
				return nil, errSlots
			}
			if isNoHost(host) {
				host = asked
			}
			slot.Nodes = append(slot.Nodes, goredis.ClusterNode{Addr: net.JoinHostPort(host, strconv.FormatInt(port, 10))})
		}
		slots = append(slots, slot)
	}
	return slots, nil
}

func isNoHost(host string) bool { return host == "" || host == "?" }

// withHost returns the address of a node. A redirection to a node without an address for clients has only a port.
func withHost(addr, known string) string {
	if host, port, err := net.SplitHostPort(addr); err == nil && isNoHost(host) {
		return net.JoinHostPort(known, port)
	}
	return addr
}

func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}
