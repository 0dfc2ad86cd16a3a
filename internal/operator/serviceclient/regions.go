package serviceclient

import (
	"context"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Regions lists what a server knows about the other regions.
func (c *Client) Regions(ctx context.Context) (*adminv1.ListRegionsResponse, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	got, err := adminv1.NewAdminServiceClient(c.conn).ListRegions(ctx, &adminv1.ListRegionsRequest{})
	if err != nil {
		return nil, c.failure(err)
	}
	return got, nil
}
