//! Structures and digests on the wire.

use nvme::{Command, Completion};
use nvme_tcp::pdu::{
    C2hData, CapsuleCmd, CapsuleResp, CommonHeader, H2cData, IcReq, IcResp, KdReq, KdResp,
    KickstartRecord, Kind, R2t, TermReq,
};
use nvme_tcp::{Descriptor, Digest, Format};
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

fn survives<T: FromBytes + IntoBytes + Immutable>(bytes: &[u8]) {
    let bytes = &bytes[..size_of::<T>()];
    let value = T::read_from_bytes(bytes).expect("sizes are equal");
    assert_eq!(value.as_bytes(), bytes);
}

proptest! {
    #[test]
    fn every_pdu_survives_a_round_trip(bytes in prop::collection::vec(any::<u8>(), 290)) {
        survives::<CommonHeader>(&bytes);
        survives::<IcReq>(&bytes);
        survives::<IcResp>(&bytes);
        survives::<TermReq>(&bytes);
        survives::<CapsuleCmd>(&bytes);
        survives::<CapsuleResp>(&bytes);
        survives::<H2cData>(&bytes);
        survives::<C2hData>(&bytes);
        survives::<R2t>(&bytes);
        survives::<KdReq>(&bytes);
        survives::<KickstartRecord>(&bytes);
        survives::<KdResp>(&bytes);
    }

    #[test]
    fn fields_lie_where_the_specification_has_them(
        a in any::<u16>(), b in any::<u16>(), c in any::<u32>(), d in any::<u32>(), e in any::<u8>(),
    ) {
        let common = CommonHeader { kind: Kind(e), flags: 1, hlen: 2, pdo: 3, plen: d.into() };
        prop_assert_eq!(&common.as_bytes()[..4], &[e, 1, 2, 3][..]);
        prop_assert_eq!(&common.as_bytes()[4..], &d.to_le_bytes()[..]);
        let transfer: [u8; 12] = {
            let mut bytes = [0; 12];
            bytes[..2].copy_from_slice(&a.to_le_bytes());
            bytes[2..4].copy_from_slice(&b.to_le_bytes());
            bytes[4..8].copy_from_slice(&c.to_le_bytes());
            bytes[8..].copy_from_slice(&d.to_le_bytes());
            bytes
        };
        let (cccid, ttag) = (a.into(), b.into());
        let h2c = H2cData {
            common, cccid, ttag, datao: c.into(), datal: d.into(), reserved: [0; 4],
        };
        prop_assert_eq!(&h2c.as_bytes()[8..20], &transfer[..]);
        let r2t = R2t { common, cccid, ttag, r2to: c.into(), r2tl: d.into(), reserved: [0; 4] };
        prop_assert_eq!(&r2t.as_bytes()[8..20], &transfer[..]);
        let c2h = C2hData {
            common, cccid, reserved_10: [0; 2], datao: c.into(), datal: d.into(),
            reserved_20: [0; 4],
        };
        prop_assert_eq!(&c2h.as_bytes()[8..10], &a.to_le_bytes()[..]);
        prop_assert_eq!(&c2h.as_bytes()[12..20], &transfer[4..]);
        let request = IcReq {
            common, pfv: a.into(), hpda_z: e, dgst: 3, maxr2t_z: c.into(), reserved: [0; 112],
        };
        prop_assert_eq!(&request.as_bytes()[8..10], &a.to_le_bytes()[..]);
        prop_assert_eq!(&request.as_bytes()[10..12], &[e, 3][..]);
        prop_assert_eq!(&request.as_bytes()[12..16], &c.to_le_bytes()[..]);
        let response = IcResp {
            common, pfv: a.into(), cpda_z: e, dgst: 3, maxh2cdata: c.into(), reserved: [0; 112],
        };
        prop_assert_eq!(&response.as_bytes()[8..], &request.as_bytes()[8..]);
        let term = TermReq { common, fes: b.into(), fei: c.to_le_bytes(), reserved: [0; 10] };
        prop_assert_eq!(&term.as_bytes()[8..10], &b.to_le_bytes()[..]);
        prop_assert_eq!(&term.as_bytes()[10..14], &c.to_le_bytes()[..]);
        let command = Command { cid: a.into(), cdw15: c.into(), ..Command::default() };
        let capsule = CapsuleCmd { common, command };
        prop_assert_eq!(&capsule.as_bytes()[10..12], &a.to_le_bytes()[..]);
        prop_assert_eq!(&capsule.as_bytes()[68..72], &c.to_le_bytes()[..]);
        let completion = Completion { cid: b.into(), ..Completion::default() };
        let capsule = CapsuleResp { common, completion };
        prop_assert_eq!(&capsule.as_bytes()[20..22], &b.to_le_bytes()[..]);
    }

    #[test]
    fn digests_match_another_implementation(
        bytes in prop::collection::vec(any::<u8>(), 0..5000), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let oracle = crc32c::crc32c(&bytes).to_le_bytes();
        prop_assert_eq!(nvme_tcp::digest::digest(&bytes), oracle);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut digest = Digest::new();
        let mut from = 0;
        for cut in cuts {
            digest.update(&bytes[from..cut]);
            from = cut;
        }
        digest.update(&bytes[from..]);
        prop_assert_eq!(digest.finish(), oracle);
    }

    #[test]
    fn sgl_descriptors_survive_a_round_trip(offset in any::<u64>(), len in any::<u32>()) {
        for descriptor in [Descriptor::InCapsule { offset, len }, Descriptor::Transport { len }] {
            prop_assert_eq!(Descriptor::parse(&descriptor.emit()), descriptor);
        }
    }

    #[test]
    fn frames_hold_their_parts_in_order(
        header_digest: bool, data_digest: bool, alignment_z in 0u8..32, data in 0usize..100_000,
        hlen in prop::sample::select(vec![24usize, 72]),
    ) {
        let format = Format { header_digest, data_digest, alignment_z };
        let frame = format.frame(hlen, data);
        prop_assert_eq!(frame.header_bytes, hlen + if header_digest { 4 } else { 0 });
        if data == 0 {
            prop_assert_eq!(frame.bytes(), frame.header_bytes);
        } else {
            prop_assert_eq!(frame.data_offset % format.alignment(), 0);
            prop_assert!(frame.data_offset < frame.header_bytes + format.alignment());
            prop_assert!(frame.data_offset >= frame.header_bytes && frame.data_offset < 256);
            let digest = if data_digest { 4 } else { 0 };
            prop_assert_eq!(frame.bytes(), frame.data_offset + data + digest);
        }
    }
}

/// "123456789" is the usual check value; 32 zeros and 32 ones are of RFC 3720, section B.4.
#[test]
fn digests_match_known_vectors() {
    assert_eq!(nvme_tcp::digest::digest(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    assert_eq!(nvme_tcp::digest::digest(&[0; 32]), 0x8a91_36aa_u32.to_le_bytes());
    assert_eq!(nvme_tcp::digest::digest(&[0xff; 32]), 0x62a8_ab43_u32.to_le_bytes());
}

/// What Linux puts into a command: SGL identifier 01h for in-capsule data, 5Ah otherwise.
#[test]
fn sgl_identifiers_are_those_of_the_specification() {
    assert_eq!(
        Descriptor::InCapsule { offset: 0, len: 0x1234 }.emit()[8..],
        [0x34, 0x12, 0, 0, 0, 0, 0, 0x01]
    );
    assert_eq!(
        Descriptor::Transport { len: 0x1234 }.emit()[8..],
        [0x34, 0x12, 0, 0, 0, 0, 0, 0x5a]
    );
    let mut dptr = [0; 16];
    dptr[15] = 0x40;
    assert_eq!(Descriptor::parse(&dptr), Descriptor::Unsupported { identifier: 0x40 });
}
