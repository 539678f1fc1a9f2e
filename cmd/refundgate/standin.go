package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"refundgate/provider/standin"
)

func newStandin() *cobra.Command {
	var listen string
	var opts standin.Options
	cmd := &cobra.Command{
		Use:   "standin",
		Short: "Run the controllable stand-in provider",
		Long: `Plays the reference provider on loopback, misbehaves as its fault plan says, and
records every request at the socket. Its control API is under /control.`,
		Example: `  refundgate standin --listen 127.0.0.1:9090 --state /tmp/standin.jsonl
  curl -X PUT -d '{"rules":[{"match":{"method":"POST"},"times":1,"fault":{"kind":"accept_then_drop"}}]}' http://127.0.0.1:9090/control/plan
  curl http://127.0.0.1:9090/control/record`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := standin.New(opts)
			if err != nil {
				return err
			}
			if err := s.Start(listen); err != nil {
				_ = s.Close() // the other error is the one to tell
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "standin: %s\n", s.URL())
			<-cmd.Context().Done()
			return s.Close()
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on; port 0 takes a free one")
	cmd.Flags().StringVar(&opts.StateFile, "state", "", "file that keeps what was executed (default: memory only)")
	cmd.Flags().BoolVar(&opts.AllowRemote, "allow-remote", false, "listen on addresses that are not loopback; the control API has no password")
	return cmd
}
