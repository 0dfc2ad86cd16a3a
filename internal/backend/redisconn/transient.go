package redisconn

import (
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// IsTransient reports whether a server that answers with this error will accept the same command later.
func IsTransient(err goredis.Error) bool {
	return slices.ContainsFunc([]string{"OOM", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF",
		"NOREPLICAS", "BUSY", "NOAUTH"},
		func(state string) bool { return strings.Contains(err.Error(), state) })
}
