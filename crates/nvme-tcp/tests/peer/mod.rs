//! PDUs written byte by byte, without the code under test, so that they can be wrong.
#![allow(dead_code, reason = "each test uses the part it needs")]

use nvme_tcp::pdu::{CommonHeader, IcReq, IcResp, Kind, flags};
use zerocopy::IntoBytes;

/// A PDU with a header, and data of a fixed pattern.
#[derive(Clone)]
pub struct Pdu {
    header: Vec<u8>,
    data: usize,
    alignment: usize,
    data_digest: bool,
}

impl Pdu {
    fn new(kind: Kind, hlen: u8) -> Pdu {
        let mut header = vec![0; usize::from(hlen)];
        header[0] = kind.0;
        header[2] = hlen;
        Pdu { header, data: 0, alignment: 4, data_digest: false }
    }

    pub fn command(cid: u16) -> Pdu {
        let mut pdu = Pdu::new(Kind::CAPSULE_CMD, 72);
        pdu.header[10..12].copy_from_slice(&cid.to_le_bytes());
        pdu
    }

    pub fn response(cid: u16) -> Pdu {
        let mut pdu = Pdu::new(Kind::CAPSULE_RESP, 24);
        pdu.header[20..22].copy_from_slice(&cid.to_le_bytes());
        pdu
    }

    fn transfer(kind: Kind, cid: u16, tag: u16, offset: u32) -> Pdu {
        let mut pdu = Pdu::new(kind, 24);
        pdu.header[8..10].copy_from_slice(&cid.to_le_bytes());
        pdu.header[10..12].copy_from_slice(&tag.to_le_bytes());
        pdu.header[12..16].copy_from_slice(&offset.to_le_bytes());
        pdu
    }

    pub fn h2c(cid: u16, tag: u16, offset: u32) -> Pdu {
        Pdu::transfer(Kind::H2C_DATA, cid, tag, offset)
    }

    pub fn c2h(cid: u16, offset: u32) -> Pdu {
        Pdu::transfer(Kind::C2H_DATA, cid, 0, offset)
    }

    pub fn r2t(cid: u16, tag: u16, offset: u32, len: u32) -> Pdu {
        Pdu::transfer(Kind::R2T, cid, tag, offset).datal(len)
    }

    /// So many bytes of data; DATAL says so too where there is one.
    pub fn data(mut self, len: usize) -> Pdu {
        self.data = len;
        if self.header.len() == 24 { self.datal(len as u32) } else { self }
    }

    pub fn datal(mut self, len: u32) -> Pdu {
        self.header[16..20].copy_from_slice(&len.to_le_bytes());
        self
    }

    pub fn aligned(mut self, alignment: usize) -> Pdu {
        self.alignment = alignment;
        self
    }

    pub fn flags(mut self, more: u8) -> Pdu {
        self.header[1] |= more;
        self
    }

    pub fn last(self) -> Pdu {
        self.flags(flags::LAST)
    }

    pub fn header_digest(self) -> Pdu {
        self.flags(flags::HDGST)
    }

    pub fn data_digest(self) -> Pdu {
        self.flags(flags::DDGST)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut pdu = self.header.clone();
        let header_digest = pdu[1] & flags::HDGST != 0;
        let data_digest = pdu[1] & flags::DDGST != 0;
        let mut offset = pdu.len() + if header_digest { 4 } else { 0 };
        let mut plen = offset;
        if self.data != 0 {
            offset = offset.next_multiple_of(self.alignment);
            pdu[3] = offset as u8;
            plen = offset + self.data + if data_digest { 4 } else { 0 };
        }
        pdu[4..8].copy_from_slice(&(plen as u32).to_le_bytes());
        if header_digest {
            let digest = crc32c::crc32c(&pdu).to_le_bytes();
            pdu.extend(digest);
        }
        pdu.resize(offset, 0);
        let data: Vec<u8> = (0..self.data).map(|at| (at * 7 % 251) as u8).collect();
        pdu.extend(&data);
        if data_digest {
            pdu.extend(crc32c::crc32c(&data).to_le_bytes());
        }
        pdu
    }
}

fn initialize(kind: Kind) -> CommonHeader {
    CommonHeader { kind, flags: 0, hlen: 128, pdo: 0, plen: 128.into() }
}

pub fn ic_req(edit: impl FnOnce(&mut IcReq)) -> Vec<u8> {
    let common = initialize(Kind::IC_REQ);
    let mut request =
        IcReq { common, pfv: 0.into(), hpda_z: 0, dgst: 0, maxr2t_z: 0.into(), reserved: [0; 112] };
    edit(&mut request);
    request.as_bytes().to_vec()
}

pub fn ic_resp(edit: impl FnOnce(&mut IcResp)) -> Vec<u8> {
    let common = initialize(Kind::IC_RESP);
    let mut response = IcResp {
        common,
        pfv: 0.into(),
        cpda_z: 0,
        dgst: 0,
        maxh2cdata: 0x2_0000.into(),
        reserved: [0; 112],
    };
    edit(&mut response);
    response.as_bytes().to_vec()
}
