"""Files of an InfiniBand or RoCE port, and their metric families."""

from trackside_daemon.model.metric import Metric, define

LABELS = ("device", "port")
PORT = "/sys/class/infiniband/DEVICE/ports/PORT"


def _counter(name: str, text: str, file: str) -> Metric:
    name = f"trackside_host_infiniband_{name}_total"
    return define(name, f"{text}, from {PORT}/{file}.", *LABELS)


def _gauge(name: str, text: str, file: str) -> Metric:
    return define(f"trackside_host_infiniband_{name}", f"{text}, from {PORT}/{file}.", *LABELS)


RECEIVED = _counter(
    "port_data_received_bytes", "Bytes received", "counters/port_rcv_data times 4, or hw_counters/rx_bytes"
)
TRANSMITTED = _counter(
    "port_data_transmitted_bytes", "Bytes sent", "counters/port_xmit_data times 4, or hw_counters/tx_bytes"
)
PACKETS_RECEIVED = _counter(
    "port_packets_received", "Packets received", "counters/port_rcv_packets, or hw_counters/rx_pkts"
)
PACKETS_TRANSMITTED = _counter(
    "port_packets_transmitted", "Packets sent", "counters/port_xmit_packets, or hw_counters/tx_pkts"
)

# Name in node_exporter and meaning, by file of counters/.
_COUNTERS = {
    "port_xmit_wait": ("port_transmit_wait", "Ticks of the port in which data waited and could not be sent"),
    "port_xmit_discards": ("port_discards_transmitted", "Packets discarded before transmission"),
    "port_xmit_constraint_errors": (
        "port_constraint_errors_transmitted",
        "Packets that a switch's rules kept from being sent",
    ),
    "port_rcv_errors": ("port_errors_received", "Packets received with an error"),
    "port_rcv_constraint_errors": ("port_constraint_errors_received", "Packets received against a switch's rules"),
    "port_rcv_remote_physical_errors": ("port_receive_remote_physical_errors", "Packets received marked as bad"),
    "port_rcv_switch_relay_errors": ("port_receive_switch_relay_errors", "Packets that a switch could not forward"),
    "symbol_error": ("symbol_error", "Minor errors of the link, as from a bad cable"),
    "link_downed": ("link_downed", "Times that the link went down"),
    "link_error_recovery": ("link_error_recovery", "Successful recoveries of the link from an error"),
    "local_link_integrity_errors": (
        "local_link_integrity_errors",
        "Times that local link errors exceeded the threshold",
    ),
    "excessive_buffer_overrun_errors": ("excessive_buffer_overrun_errors", "Times that buffers overran repeatedly"),
    "VL15_dropped": ("vl15_dropped", "Dropped packets of the fabric's management"),
}

COUNTERS = {file: _counter(name, text, f"counters/{file}") for file, (name, text) in _COUNTERS.items()}

# Name in node_exporter and meaning, by file of hw_counters/.
_HW_COUNTERS = {
    "np_cnp_sent": ("np_cnp_packets_sent", "Congestion notifications sent to senders that are too fast"),
    "np_ecn_marked_roce_packets": ("np_ecn_marked_roce_packets_received", "Packets received with a congestion mark"),
    "rp_cnp_handled": ("rp_cnp_packets_handled", "Congestion notifications received that reduced the send rate"),
    "rp_cnp_ignored": ("rp_cnp_ignored_packets_received", "Congestion notifications received and ignored"),
    "out_of_sequence": ("out_of_sequence_packets_received", "Packets received out of sequence"),
    "out_of_buffer": ("out_of_buffer_drops", "Packets dropped because nothing was ready to receive them"),
    "duplicate_request": ("duplicate_requests_packets", "Requests received a second time"),
    "packet_seq_err": ("packet_sequence_errors", "Negative acknowledgements received for packets out of sequence"),
    "implied_nak_seq_err": ("implied_nak_seq_errors", "Responses received out of sequence"),
    "local_ack_timeout_err": ("local_ack_timeout_errors", "Times that no acknowledgement arrived in time"),
    "rnr_nak_retry_err": (
        "rnr_nak_retry_packets_received",
        "Negative acknowledgements received because the other end was not ready",
    ),
    "roce_adp_retrans": ("roce_adp_retransmits", "Adaptive retransmissions"),
    "roce_adp_retrans_to": ("roce_adp_retransmits_timeout", "Adaptive retransmissions that timed out"),
    "rx_icrc_encapsulated": ("rx_icrc_encapsulated_errors", "Packets received with a wrong checksum"),
}

# File names of irdma, by the names of mlx5.
IRDMA = {
    "np_cnp_sent": "cnpSent",
    "np_ecn_marked_roce_packets": "RxECNMrkd",
    "rp_cnp_handled": "cnpHandled",
    "rp_cnp_ignored": "cnpIgnored",
}


def _hw_counters() -> dict[str, tuple[Metric, int]]:
    counters = {}
    for file, (name, text) in _HW_COUNTERS.items():
        files = [file, IRDMA[file]] if file in IRDMA else [file]
        metric = _counter(name, text, f"hw_counters/{' or '.join(files)}")
        counters.update(dict.fromkeys(files, (metric, 1)))
    return counters


# Family and factor by directory and file; of two files of one family, the first is read.
FILES: dict[str, dict[str, tuple[Metric, int]]] = {
    "counters": {
        "port_rcv_data": (RECEIVED, 4),  # the InfiniBand specification counts data in units of 4 bytes
        "port_xmit_data": (TRANSMITTED, 4),
        "port_rcv_packets": (PACKETS_RECEIVED, 1),
        "port_xmit_packets": (PACKETS_TRANSMITTED, 1),
        **{file: (metric, 1) for file, metric in COUNTERS.items()},
    },
    "hw_counters": {
        "rx_bytes": (RECEIVED, 1),
        "tx_bytes": (TRANSMITTED, 1),
        "rx_pkts": (PACKETS_RECEIVED, 1),
        "tx_pkts": (PACKETS_TRANSMITTED, 1),
        **_hw_counters(),
    },
}

STATE = _gauge("port_state", "State of the port, 1 down, 2 initializing, 3 armed, 4 active, 5 active deferred", "state")
PHYSICAL_STATE = _gauge(
    "port_physical_state",
    "State of the link, 1 sleep, 2 polling, 3 disabled, 4 training, 5 up, 6 recovering from an error, 7 testing",
    "phys_state",
)
RATE = _gauge("rate_bytes_per_second", "Rate of the link in one direction", "rate")
INFO = define(
    "trackside_host_infiniband_port_info",
    f"A port with its link_layer, InfiniBand or, with RoCE, Ethernet, from {PORT}/link_layer.",
    *LABELS,
    "link_layer",
)
